"""``schedule()`` declares a schedule in code. Importing the module records it, without a database query."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from ..core.backends import config_of
from ..core.clock import DATES_ALLOWED, is_in_range, project_timezone
from ..core.compat import FrameworkTask
from ..core.option_parsers import Retention
from ..core.schedule_patterns import Pattern
from ..core.serialization import encode
from ..enqueue.task import HorsiesTask
from ..workflows.definition import WorkflowDefinition

if TYPE_CHECKING:
    from ..models import Schedule

#: Options of a schedule, without those of its calls, and their defaults. The time zone None means the project's; it is
#: looked up later, because a module may be imported before the settings are final.
_SCHEDULE_OPTIONS: Final[Mapping[str, Any]] = {
    "timezone": None,
    "enabled": True,
    "catch_up": "latest",
    "max_catch_up_runs": 100,
    "overlap": "allow",
    "jitter": 0.0,
    "skip_nonexistent": False,
    "start_at": None,
    "end_at": None,
}
_CALL_OPTIONS: Final = frozenset(
    {"queue_name", "priority", "timeout", "retention", "metadata", "unique_key", "good_for"}
)


class ScheduleOptions(TypedDict, total=False):
    """The options of ``schedule()``; the last seven apply to each call. Durations are in seconds."""

    timezone: str
    enabled: bool
    catch_up: str
    max_catch_up_runs: int
    overlap: str
    jitter: float
    skip_nonexistent: bool
    start_at: datetime | None
    end_at: datetime | None
    backend: str
    queue_name: str
    priority: int
    timeout: float | None
    retention: Retention
    metadata: Mapping[str, Any] | None
    unique_key: str | None
    good_for: float | None


@dataclass(frozen=True)
class DeclaredSchedule:
    """A schedule that code declares."""

    name: str
    what: Any
    when: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    #: Identifies the import of its module; and whether ``schedule()`` was called at module level, not in a function.
    loaded: object = field(default=None, compare=False, repr=False)
    is_at_top: bool = field(default=False, compare=False, repr=False)

    @property
    def backend(self) -> str:
        """The alias of the backend whose schedulers send this schedule."""
        if "backend" in self.options:
            return str(self.options["backend"])
        if isinstance(self.what, FrameworkTask):
            return str(self.what.backend)
        meta = getattr(self.what, "_meta", None)
        return str(getattr(getattr(meta, "options", None), "backend", None) or "default")

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each error that can only be found before there is a row."""
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 255:
            yield f"name is {self.name!r}; allowed: a text of 1 to 255 characters."
        if not isinstance(self.what, HorsiesTask) and not _is_definition(self.what):
            yield f"what is {self.what!r}; allowed: a task, or a WorkflowDefinition with a definition_key."
        if not hasattr(self.when, "problems"):
            yield f"when is {self.when!r}; allowed: Every, Cron, Hourly, Daily, Weekly or Monthly."
        else:
            yield from self.when.problems()
        for option in sorted(self.options.keys() - _SCHEDULE_OPTIONS.keys() - _CALL_OPTIONS - {"backend"}):
            near = difflib.get_close_matches(option, [*_SCHEDULE_OPTIONS, *_CALL_OPTIONS], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            allowed = ", ".join(sorted({*_SCHEDULE_OPTIONS, *_CALL_OPTIONS, "backend"}))
            yield f"there is no option {option!r}; allowed: {allowed}.{hint}"
        for name in ("enabled", "skip_nonexistent"):
            if not isinstance(value := self.options.get(name, False), bool):
                yield f"{name} is {value!r}; allowed: True or False."
        for name in ("start_at", "end_at"):
            if isinstance(at := self.options.get(name), datetime) and at.tzinfo is None:
                yield f"{name} is {at!r}; allowed: an aware datetime, or None."
            elif isinstance(at, datetime) and not is_in_range(at):
                yield f"{name} is {at!r}; allowed: {DATES_ALLOWED}."

    def columns(self) -> dict[str, Any]:
        """Return the columns of the row. Raises TypeError or ValueError for values that a row can't store."""
        own = {**_SCHEDULE_OPTIONS, **{name: self.options[name] for name in self.options if name in _SCHEDULE_OPTIONS}}
        if own["timezone"] is None:
            own["timezone"] = project_timezone()
        return _columns_of(self, own)

    @property
    def call_options(self) -> dict[str, Any]:
        """The options of each call, as declared."""
        return {name: value for name, value in self.options.items() if name in _CALL_OPTIONS and value is not None}

    def row(self, project: str) -> Schedule:
        """Return an unsaved row. Raises the same errors as :meth:`columns`."""
        from ..models import Schedule

        return Schedule(name=self.name, source=project, **self.columns())


@dataclass(slots=True)
class Declarations:
    """All declared schedules by name and line. Importing a module again replaces its schedules."""

    by_place: dict[tuple[str, str], list[DeclaredSchedule]] = field(default_factory=dict)

    def add(self, declared: DeclaredSchedule) -> None:
        """Record a schedule. ``manage.py check`` reports duplicate names."""
        known = self.by_place.setdefault((str(declared.name), declared.place), [])
        if declared.loaded is None or any(other.loaded is not declared.loaded for other in known):
            known.clear()  # the module is imported again
        # A loop or helper may declare several schedules on one line; calling a function again declares the same one.
        if declared.is_at_top or declared not in known:
            known.append(declared)

    def __iter__(self) -> Iterator[DeclaredSchedule]:
        """Yield the schedules in the order of declaration."""
        for found in self.by_place.values():
            yield from found


declarations = Declarations()


def schedule(
    name: str,
    what: HorsiesTask[..., Any] | type[WorkflowDefinition[Any]],
    when: Pattern,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[ScheduleOptions],
) -> DeclaredSchedule:
    """Declare a schedule that sends a task, or starts a workflow, at each slot of ``when``. Call it in a ``tasks.py``.

    >>> schedule("morning report", send_report, Cron("0 9 * * MON-FRI"), timezone="Europe/Berlin", queue_name="mail")

    ``name`` identifies the row. ``manage.py check`` reports errors; none is raised. The options are those of
    :class:`ScheduleOptions`; the page on schedules describes each.
    """
    caller = sys._getframe(1)
    declared = DeclaredSchedule(
        name,
        what,
        when,
        args,
        {} if kwargs is None else kwargs,
        options,
        place=f"{caller.f_globals.get('__name__', '?')}:{caller.f_lineno}",
        # Each import has its own spec; a script and an interactive prompt have none.
        loaded=caller.f_globals.get("__spec__") or caller.f_globals.get("__file__"),
        is_at_top=caller.f_code.co_name == "<module>",
    )
    declarations.add(declared)
    return declared


def _is_definition(what: object) -> bool:
    return isinstance(what, type) and issubclass(what, WorkflowDefinition) and what._meta.is_registered


def _columns_of(declared: DeclaredSchedule, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns. Raises TypeError or ValueError for arguments or options that JSON can't represent."""
    typed = config_of(declared.backend).serializer == "rich"
    args, kwargs = declared.args, declared.kwargs
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise TypeError(f"args is {args!r}; allowed: a list or a tuple.")
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs is {kwargs!r}; allowed: a dict.")
    is_task = isinstance(declared.what, HorsiesTask)
    return {
        **own,
        "declared_enabled": own["enabled"],
        "start_at": own["start_at"],
        "end_at": own["end_at"],
        "backend": declared.backend,
        "task_name": declared.what.task_name if is_task else None,
        "workflow_name": None if is_task else declared.what._meta.options.definition_key,
        "timing": declared.when.timing,
        "args": [encode(value, typed=typed, where=f"args[{place}]") for place, value in enumerate(args)],
        "kwargs": {name: encode(value, typed=typed, where=f"argument {name!r}") for name, value in kwargs.items()},
        "options": {name: _option(name, value) for name, value in declared.call_options.items()},
    }


def _option(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name == "retention" and isinstance(value, Mapping):
        value = {state: kept.total_seconds() if isinstance(kept, timedelta) else kept for state, kept in value.items()}
    return encode(value, typed=False, where=f"option {name!r}")
