"""Check the tasks that have not ended, and the schedules: their names, queues and arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, TextField
from django.db.models.functions import Cast

from ...core.backends import ConfiguredBackend
from ...core.compat import FrameworkTask
from ...core.version import __version__
from ...db.skip_scan import distinct
from ...enqueue.task import HorsiesTask
from ...models import Schedule, Task, TaskItem, TaskStep, Worker
from ...models.claim.query import ORDER
from ...models.transitions import TaskQuerySet
from ...schedules.syncing import project_of
from ..keyset.scopes import AWAITING, DEFERRED, HELD
from .calls import (
    Check,
    definition_parameters,
    definition_problem,
    find_task,
    gathers,
    name_problem,
    read_json,
    signature_problem,
    task_parameters,
    value_problems,
)

#: Maximum rows that are read of each part of the tasks: held, deferred, blocked, and those that wait in one queue.
MAX_ROWS: Final = 100_000

#: Maximum rows that are read of all queues together; ``MIN_OF_QUEUE`` of each are read in any case.
MAX_OF_QUEUES: Final = 1_000_000
MIN_OF_QUEUE: Final = 1_000

#: Maximum queues with waiting tasks that are read, of functions and of coroutines.
MAX_QUEUES: Final = 1_000

#: Maximum tasks that have begun of which the records are looked at, and tasks in one statement.
MAX_BEGUN: Final = 100_000
BATCH: Final = 500

#: Grouped calls of a group that are examined.
MAX_ITEMS: Final = 20

#: Maximum schedules of one backend that are read.
MAX_SCHEDULES: Final = 10_000


class _Row(NamedTuple):
    id: UUID
    task_name: str
    queue_name: str
    backend: str
    typed_payload: bool
    claim: int
    has_inputs: bool
    item_count: int | None
    workflow_id: UUID | None
    waits_for: str | None

    @property
    def is_group(self) -> bool:
        return self.item_count is not None

    @property
    def is_delayed(self) -> bool:
        """Whether it joins a group once it is due."""
        return self.has_inputs and not self.is_group


def check_tasks(check: Check) -> None:
    """Read the tasks, then examine the arguments of a sample of each name.

    The tasks of workflows' nodes are read for their queues alone: the check of nodes knows their arguments.
    """
    tasks: TaskQuerySet = Task.objects.using(check.database)
    scopes = (each.ranges[0] for each in (HELD, AWAITING, DEFERRED))
    held, awaiting, deferred = (tasks.filter(each.rows).order_by(*each.order) for each in scopes)
    _read(check, "tasks that workers hold", held, MAX_ROWS)
    _read(check, "tasks that wait without a slot", awaiting, MAX_ROWS, awaits=True)
    _read(check, "scheduled tasks", deferred, MAX_ROWS)
    _read(check, "tasks that wait for a limit", tasks.blocked().order_by("limit_key", *ORDER), MAX_ROWS)
    left = MAX_OF_QUEUES
    for is_async in (False, True):
        names = _queue_names(tasks, is_async)
        sentence = f"Tasks wait in more than {MAX_QUEUES:,} queues; the others were not read."
        for name in list(check.read_rows(names, MAX_QUEUES, sentence, "task", "queue", "run")):
            waiting = tasks.waiting(is_async=is_async).filter(queue_name=name).order_by(*ORDER)
            limit = min(MAX_ROWS, max(left, MIN_OF_QUEUE))
            left -= _read(check, f"tasks that wait in queue {name!r}", waiting, limit)
    check.examine("task", lambda name, rows: _problems(tasks, name, rows))


def _queue_names(tasks: TaskQuerySet, is_async: bool) -> Sequence[str]:
    """Return the queues in which tasks wait, by a skip scan."""
    names = distinct(tasks.waiting(is_async=is_async), "queue_name", MAX_QUEUES + 1)
    return [name for (name,) in names.rows(tasks.db)]


def _read(check: Check, label: str, tasks: TaskQuerySet, limit: int, *, awaits: bool = False) -> int:
    """Read rows that one index has in this order; return how many. Those that wait without a slot have their own."""
    sentence = f"There are more {label} than {limit:,}; the others were not read."
    number, rows = 0, tasks.values_list(*_Row._fields)[: limit + 1].iterator()
    for row in map(_Row._make, check.read_rows(rows, limit, sentence, "task", "queue", "run")):
        number += 1
        # Here: conditions would read any number of others' rows.
        if check.backend not in (None, row.backend) or awaits != (row.waits_for is not None):
            continue
        check.read["tasks"] += 1
        check.add_queue(row.queue_name, row.id)
        if row.claim:
            check.begun.append((row.id, row.task_name))
        if row.workflow_id is None and not check.add("task", row.task_name, name_problem(row.task_name), row.id):
            check.add_to_sample("task", row.task_name, row)
    return number


def _problems(tasks: TaskQuerySet, name: str, rows: Sequence[_Row]) -> Iterator[tuple[str, UUID]]:
    """Yield the problems of the arguments of tasks, and of the first calls of groups; each with the task's id."""
    task, by_id = find_task(name), {row.id: row for row in rows}
    if task is None:
        return
    columns = ("pk", Cast("args", TextField()), Cast("kwargs", TextField()))
    for key, args, kwargs in tasks.filter(pk__in=by_id).order_by("pk").values_list(*columns):
        for problem in _call_problems(task, by_id[key], args, kwargs):
            yield problem, key
    groups = [key for key, row in by_id.items() if row.is_group and row.typed_payload]
    items = TaskItem.objects.using(tasks.db).filter(task__in=groups, position__lt=MAX_ITEMS)
    texts = items.values_list("task_id", Cast("kwargs", TextField())) if groups else ()
    yield from dict.fromkeys(
        (f"a grouped call: {problem}", key) for key, text in texts for problem in _item_problems(by_id[key], text)
    )


def _call_problems(
    task: FrameworkTask[..., Any], row: _Row, args_text: str | None, kwargs_text: str | None
) -> Iterator[str]:
    try:
        args, kwargs = read_json(args_text, list), read_json(kwargs_text, dict)
    except ValueError as error:
        yield str(error)
        return
    yield from value_problems([*args, *kwargs.values()], row.backend, is_typed=row.typed_payload)
    if problem := _argument_problem(task, row, args, kwargs):
        yield problem


def _argument_problem(
    task: FrameworkTask[..., Any], row: _Row, args: Sequence[Any], kwargs: Collection[str]
) -> str | None:
    parameters = task_parameters(task)
    if row.is_group:
        if not parameters.own:
            return "it has no parameter for the list of its grouped calls"
        return signature_problem(parameters, args, [*kwargs, parameters.own[0]])
    if row.is_delayed and not isinstance(task, HorsiesTask):
        return "it is not a task of horsies_django any more, so a call for later can't join its group"
    if row.is_delayed and gathers(task):
        return None  # the arguments of a grouped call may have any names
    return signature_problem(parameters, args, kwargs)


def _item_problems(row: _Row, text: str | None) -> Iterator[str]:
    """Yield problems of the values of a grouped call; their names may be any."""
    try:
        yield from value_problems(read_json(text, dict).values(), row.backend, is_typed=True)
    except ValueError as error:
        yield str(error)


def check_runs(check: Check, versions: Collection[str]) -> None:
    """Look which of the tasks that have begun have records of a version of the code that is not among these.

    A record has the version of its worker. Steps themselves are not compared: that their functions have other names
    breaks nothing.
    """
    sentence = f"Of more than {MAX_BEGUN:,} tasks that have begun, the records of the others were not read."
    begun = dict(check.read_rows(check.begun, MAX_BEGUN, sentence, "run"))
    keys, tasks = list(begun), Task.objects.using(check.database)
    others = TaskStep.objects.using(check.database).exclude(code_version__in=["", *versions])
    for place in range(0, len(keys), BATCH):
        rows = tasks.filter(Exists(others.filter(task=OuterRef("pk"))), pk__in=keys[place : place + BATCH])
        for key in rows.order_by("pk").values_list("pk", flat=True):
            check.add("run", begun[key], "it has begun under another version of the code", key)


def check_workers(check: Check, seconds: float) -> None:
    """Look which workers with a heartbeat in the last ``seconds`` run another release of this package."""
    others = Worker.objects.using(check.database).alive(seconds).exclude(version=__version__)
    for key, version in others.order_by("pk").values_list("pk", "version"):
        check.add("worker", version, "it runs another release of horsies-django", key)


# Schedules.


def check_schedules(check: Check, alias: str, backend: ConfiguredBackend) -> None:
    """Check the enabled schedules of a backend that a scheduler would send and would not rewrite first.

    A scheduler writes those that the code declares to their rows before it sends any, and disables those that are gone
    from the code. So this checks only those that were made by hand, or enabled again by an operator. ``manage.py
    check`` validates the declared ones.
    """
    rows = Schedule.objects.using(check.database).served_by(alias, project_of(backend.config))
    by_hand = rows.filter(Q(source="") | Q(declared_enabled__isnull=True)).order_by("next_run_at")
    texts = [Cast(name, TextField()) for name in ("args", "kwargs", "options")]
    columns = by_hand.values_list("pk", "name", "task_name", "workflow_name", *texts)[: MAX_SCHEDULES + 1]
    sentence = f"There are more schedules of {alias!r} than {MAX_SCHEDULES:,}; the others were not read."
    for key, name, *call in check.read_rows(columns.iterator(), MAX_SCHEDULES, sentence, "schedule"):
        check.read["schedules"] += 1
        for problem in _schedule_problems(alias, backend, *call):
            check.add("schedule", name, problem, key)


def _schedule_problems(
    alias: str, backend: ConfiguredBackend, task_name: str | None, workflow_name: str | None, *texts: str
) -> Iterator[str]:
    try:
        args, (kwargs, options) = read_json(texts[0], list), (read_json(text, dict) for text in texts[1:])
    except ValueError as error:
        yield str(error)
        return
    yield from value_problems([*args, *kwargs.values()], alias, is_typed=backend.config.serializer == "rich")
    name = str(workflow_name if task_name is None else task_name)
    problem = _workflow_problem(name, args, kwargs) if task_name is None else _task_problem(name, args, kwargs)
    if problem:
        yield problem
    queue, not_served = options.get("queue_name"), f"is not in QUEUES of {alias!r}"
    task = None if task_name is None else find_task(task_name)
    if task is not None and "queue_name" not in options and backend.queues and task.queue_name not in backend.queues:
        yield f"{name}: its queue {task.queue_name!r} {not_served}"
    if isinstance(queue, str) and backend.queues and queue not in backend.queues:
        yield f"queue {queue!r} {not_served}"


def _task_problem(name: str, args: Sequence[Any], kwargs: Collection[str]) -> str | None:
    task = find_task(name)
    if task is None:
        problem = name_problem(name)
    elif not isinstance(task, HorsiesTask):
        problem = "it is a task of another backend"
    elif gathers(task):
        problem = "it gathers its calls, which have no positional arguments" if args else None
    else:
        problem = signature_problem(task_parameters(task), args, kwargs)
    return problem and f"{name}: {problem}"


def _workflow_problem(key: str, args: Sequence[Any], kwargs: Collection[str]) -> str | None:
    if problem := definition_problem(key):
        return problem
    if args:
        return f"{key}: a workflow has no positional arguments"
    problem = signature_problem(definition_parameters(key), (), kwargs)
    return problem and f"{key}: {problem}"
