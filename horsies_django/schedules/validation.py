"""Find every problem of declared schedules and of rows, as sentences. Nothing is sent, no database is queried."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.utils.timezone import is_aware

from ..core import headers
from ..core.backends import config_of
from ..core.clock import DATES_ALLOWED, aware, is_in_range
from ..core.compat import InvalidTask, task_backends
from ..core.current_task import dry_run
from ..core.exceptions import InvalidWorkflow, NotRegistered
from ..core.options import Options
from ..core.parameters import parameters_of
from ..core.registry import registry
from ..core.schedule_patterns import Cron, Pattern, parse
from ..core.schedule_slots import Slots, parse_timezone
from ..enqueue.backend import HorsiesBackend
from ..enqueue.call_builder import CallBuilder
from ..enqueue.call_keys import grouped_call
from ..enqueue.task import HorsiesTask
from ..models.schedule import MAX_CATCH_UP, MAX_JITTER, CatchUp, Overlap
from ..workflows.definition import WorkflowDefinition
from .declaration import CALL_OPTIONS, DeclaredSchedule, ScheduleOptions, declarations
from .scheduled_call import WORKFLOW_OPTIONS, ScheduledCall, call_of, workflow_of

if TYPE_CHECKING:
    from ..models import Schedule

#: The send time of a call that is only validated.
_SOME_TIME: Final = datetime(2100, 1, 1, tzinfo=UTC)

ColumnProblem = tuple[str, str]


# Declarations.


def declaration_problems() -> Iterator[tuple[str, str]]:
    """Yield each error and warning of the declared schedules, after the id of its system check."""
    places: dict[str, list[str]] = defaultdict(list)
    for declared in declarations:
        places[str(declared.name)].append(declared.place)
        errors = problems_of_declaration(declared)
        yield from (("horsies.E005", f"{declared}: {error}") for error in errors)
        if not errors and isinstance(declared.when, Cron):
            yield from (("horsies.W011", f"{declared}: {warning}") for warning in declared.when.warnings())
    for name, same in places.items():
        for place in dict.fromkeys(same) if len(same) > 1 else ():
            if others := " and ".join(dict.fromkeys(other for other in same if other != place)):
                problem = f"the name is that of the one in {others} too"
            else:
                problem = f"this line declares {len(same)} of that name"
            yield "horsies.E006", f"schedule {name!r} ({place}): {problem}; allowed: a name for each."


def problems_of_declaration(declared: DeclaredSchedule) -> list[str]:
    """Return the errors of one declared schedule, without comparing it to others.

    Returns none if its backend is not a HorsiesBackend: tests may use another one, without schedules.
    """
    alias = declared.backend
    if alias in task_backends.settings and not isinstance(task_backends[alias], HorsiesBackend):
        return []
    if problems := list(_declared(declared)):
        return problems
    try:
        row = declared.row("")
    except (InvalidTask, ImproperlyConfigured, TypeError, ValueError) as error:
        return [str(error)]
    return [sentence for sentences in problems_of(row).values() for sentence in sentences]


def _declared(declared: DeclaredSchedule) -> Iterator[str]:
    """Yield the errors that can only be found before there is a row."""
    name, what, when = declared.name, declared.what, declared.when
    if not isinstance(name, str) or not 0 < len(name) <= 255:
        yield f"name is {name!r}; allowed: a text of 1 to 255 characters."
    is_definition = isinstance(what, type) and issubclass(what, WorkflowDefinition) and what._meta.is_registered
    if not isinstance(what, HorsiesTask) and not is_definition:
        yield f"what is {what!r}; allowed: a task, or a WorkflowDefinition with a definition_key."
    if isinstance(when, Pattern):
        yield from when.problems()
    else:
        yield f"when is {when!r}; allowed: Every, Cron, Hourly, Daily, Weekly or Monthly."
    allowed = sorted(ScheduleOptions.__optional_keys__)
    for option in sorted(declared.options.keys() - set(allowed)):
        near = difflib.get_close_matches(option, allowed, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        yield f"there is no option {option!r}; allowed: {', '.join(allowed)}.{hint}"


# Rows.


def problems_of(row: Schedule) -> Mapping[str, list[str]]:
    """Return a sentence for each error of a row, by column name."""
    problems: dict[str, list[str]] = defaultdict(list)
    for check in (_timing, _window, _policies, _columns):
        for column, sentence in check(row):
            problems[column].append(sentence)
    if not problems.keys() & {"args", "kwargs", "options", "backend"}:
        for column, sentence in _call(row):
            problems[column].append(sentence)
    return dict(problems)


def _timing(row: Schedule) -> Iterator[ColumnProblem]:
    yield from _error("timing", lambda: parse(row.timing))
    yield from _error("timezone", lambda: parse_timezone(row.timezone))


def _window(row: Schedule) -> Iterator[ColumnProblem]:
    for name in ("start_at", "end_at"):
        value = getattr(row, name)
        if value is not None and not (isinstance(value, datetime) and is_aware(value)):
            yield name, f"{name} is {value!r}; allowed: an aware datetime, or None."
            return
        if value is not None and not is_in_range(value):
            yield name, f"{name} is {value}; allowed: {DATES_ALLOWED}."
            return
    start, end = aware(row.start_at), aware(row.end_at)
    if start is not None and end is not None and end < start:
        yield "end_at", f"end_at is {row.end_at}, before start_at, {row.start_at}; allowed: a later time."


def _policies(row: Schedule) -> Iterator[ColumnProblem]:
    for name in ("enabled", "skip_nonexistent"):
        if not isinstance(value := getattr(row, name), bool):
            yield name, f"{name} is {value!r}; allowed: True or False."
    for name, kind in (("catch_up", CatchUp), ("overlap", Overlap)):
        if (value := getattr(row, name)) not in kind.values:
            yield name, f"{name} is {value!r}; allowed: {' or '.join(map(repr, kind.values))}."
    max_runs = row.max_catch_up_runs
    if isinstance(max_runs, bool) or not isinstance(max_runs, int) or not 1 <= max_runs <= MAX_CATCH_UP:
        yield (
            "max_catch_up_runs",
            f"max_catch_up_runs is {max_runs!r}; allowed: a whole number from 1 to {MAX_CATCH_UP}.",
        )
    jitter = row.jitter
    if not isinstance(jitter, int | float) or isinstance(jitter, bool) or not 0 <= jitter <= MAX_JITTER:
        yield "jitter", f"jitter is {jitter!r}; allowed: 0 to {MAX_JITTER} (seconds)."
    elif jitter:
        yield from _jitter(row)


def _jitter(row: Schedule) -> Iterator[ColumnProblem]:
    """Check that jitter is shorter than the gap between slots: otherwise slots could fire out of order and be lost."""
    with suppress(ValueError):  # _timing() reports it
        slots = Slots(parse(row.timing), parse_timezone(row.timezone), skip_nonexistent=row.skip_nonexistent)
        if row.jitter >= (gap := slots.shortest_gap()):
            allowed = f"less than {gap:g} (seconds), the time between two slots"
            yield "jitter", f"jitter is {row.jitter!r}; allowed: {allowed}."


def _columns(row: Schedule) -> Iterator[ColumnProblem]:
    try:
        config_of(row.backend)
    except (InvalidTask, ImproperlyConfigured) as error:
        yield "backend", str(error)
    for name, kind, words in (("args", list, "a list"), ("kwargs", dict, "a dict"), ("options", dict, "a dict")):
        if not isinstance(value := getattr(row, name), kind):
            yield name, f"{name} is {value!r}; allowed: {words}."
    if bool(row.task_name) == bool(row.workflow_name):
        sentence = "A schedule has a task or a workflow; allowed: one of the two."
        yield ("workflow_name" if row.task_name else "task_name"), sentence


def _call(row: Schedule) -> Iterator[ColumnProblem]:
    if row.task_name and not row.workflow_name:
        yield from _task_call(row, row.task_name)
    elif row.workflow_name and not row.task_name:
        yield from _workflow_call(row)


def _task_call(row: Schedule, name: str) -> Iterator[ColumnProblem]:
    try:
        call = call_of(row, _SOME_TIME)
        task_backends[row.backend].validate_task(call.task)
    except NotRegistered as error:
        yield ("kwargs" if row.kwargs else "args") if name in registry.tasks else "task_name", str(error)
    except (InvalidTask, TypeError, ValueError) as error:
        yield "options", _describe(error, CALL_OPTIONS)
    else:
        options = config_of(row.backend)
        yield from _reserved_headers(call.task, options)
        if call.task.gather is not None:
            yield from _grouped_call(row, call, options)
            return
        column = "args" if row.args and not row.kwargs else "kwargs"
        yield from _error(column, lambda: CallBuilder.of(call.task, options).arguments(call.args, call.kwargs))


def _grouped_call(row: Schedule, call: ScheduledCall, options: Options) -> Iterator[ColumnProblem]:
    """Check a call of a grouped task, whose function takes the list of the grouped calls."""
    task, (items, *_) = call.task, parameters_of(call.task.func, call.task.takes_context).own
    if row.overlap == Overlap.CANCEL_PREVIOUS:
        allowed = f"'allow' or 'skip', because a run of {task.module_path} also has calls of other senders"
        yield "overlap", f"overlap is {row.overlap!r}; allowed: {allowed}."
    if call.kwargs.keys() == {items}:
        problem = f"{task.module_path} gets the list of its calls as {items!r}"
        yield "kwargs", f"{problem}; allowed: the keyword arguments of one call."
        return
    try:
        grouped_call(CallBuilder.of(task, options), call.args, call.kwargs)
    except InvalidTask as error:
        yield "options", str(error)
    except Exception as error:  # noqa: BLE001  # the key may be the project's callable
        yield ("args" if call.args else "kwargs"), str(error) or repr(error)


def _reserved_headers(task: HorsiesTask[..., Any], options: Options) -> Iterator[ColumnProblem]:
    if not options.middleware:
        return
    try:
        headers.check_reserved(options, task.metadata, headers.collect(options))
    except Exception as error:  # noqa: BLE001  # headers() is the project's code
        yield "options", str(error) or repr(error)


def _workflow_call(row: Schedule) -> Iterator[ColumnProblem]:
    try:
        with dry_run():
            workflow_of(row, _SOME_TIME)
    except LookupError as error:
        yield "workflow_name", str(error.args[0])
    except InvalidWorkflow as error:
        yield "workflow_name", str(error)
    except Exception as error:  # noqa: BLE001  # build_with() is the project's code and may raise anything
        is_option = bool(row.options) and "options" in str(error)
        yield ("options" if is_option else "kwargs"), _describe(error, WORKFLOW_OPTIONS)


def _describe(error: Exception, allowed: frozenset[str]) -> str:
    return str(error) or f"{error!r}; allowed options: {', '.join(sorted(allowed))}."


def _error(column: str, check: Callable[[], Any]) -> Iterator[ColumnProblem]:
    try:
        check()
    except (TypeError, ValueError) as error:
        yield column, str(error)
