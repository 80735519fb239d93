"""``schedule()``: what code declares, noted as its module is imported and asked of no database."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from ..core.bounds import DATES_ALLOWED, is_in_range
from ..core.clock import project_timezone
from ..core.compat import FrameworkTask
from ..core.schedule_patterns import Pattern
from ..core.task_options import Retention
from ..enqueue.task import HorsiesTask
from ..workflows.definition import WorkflowDefinition

if TYPE_CHECKING:
    from ..models import Schedule

#: What a schedule is, beside the options of its calls, and what it is if nothing is said. None as a time zone is the
#: project's: settings may be another's when a module is imported.
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
    """What ``schedule()`` takes beside what is sent and when; the last seven are for each call."""

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
    """A schedule as code has it."""

    name: str
    what: Any
    when: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    #: The import of the module that it stands in, and whether it is at the top of that and not in a function.
    loaded: object = field(default=None, compare=False, repr=False)
    is_at_top: bool = field(default=False, compare=False, repr=False)

    @property
    def backend(self) -> str:
        """The alias of the backend whose schedulers send it."""
        if "backend" in self.options:
            return str(self.options["backend"])
        if isinstance(self.what, FrameworkTask):
            return str(self.what.backend)
        meta = getattr(self.what, "_meta", None)
        return str(getattr(getattr(meta, "options", None), "backend", None) or "default")

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each mistake that no row could tell of."""
        if not isinstance(self.name, str) or not 0 < len(self.name) <= 255:
            yield f"name is {self.name!r}; allowed: a text of 1 to 255 characters."
        if not _is_task(self.what) and not _is_definition(self.what):
            yield f"it has {self.what!r}; allowed: a task, or a WorkflowDefinition with a definition_key."
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
        """Return the columns of its row. Raises TypeError or ValueError for what a row can't hold."""
        from .columns import columns_of

        own = {**_SCHEDULE_OPTIONS, **{name: self.options[name] for name in self.options if name in _SCHEDULE_OPTIONS}}
        if own["timezone"] is None:
            own["timezone"] = project_timezone()
        return columns_of(self, own)

    @property
    def call_options(self) -> dict[str, Any]:
        """The options of each call, as given."""
        return {name: value for name, value in self.options.items() if name in _CALL_OPTIONS and value is not None}

    def row(self, project: str) -> Schedule:
        """Return a row that is in no table yet. Raises as :meth:`columns`."""
        from ..models import Schedule

        return Schedule(name=self.name, source=project, **self.columns())


@dataclass(slots=True)
class Declarations:
    """All schedules that have been declared, by name and line: a module that is imported again replaces its own."""

    by_place: dict[tuple[str, str], list[DeclaredSchedule]] = field(default_factory=dict)

    def add(self, declared: DeclaredSchedule) -> None:
        """Note a schedule; two with one name are a mistake, which ``manage.py check`` tells."""
        known = self.by_place.setdefault((str(declared.name), declared.place), [])
        if declared.loaded is None or any(other.loaded is not declared.loaded for other in known):
            known.clear()  # the module is imported again
        # A loop, or a helper, runs one line for several schedules; a function that is called again declares the same.
        if declared.is_at_top or declared not in known:
            known.append(declared)

    def __iter__(self) -> Iterator[DeclaredSchedule]:
        """Yield them in the order in which they were declared."""
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
    """Declare that a task is sent, or a workflow started, at each slot of a pattern; at the top of a ``tasks.py``.

    >>> schedule("morning report", send_report, Cron("0 9 * * MON-FRI"), timezone="Europe/Berlin", queue_name="mail")

    The name is what its row is known by. Mistakes do not raise: ``manage.py check`` tells them all at once. The options
    are those of :class:`ScheduleOptions`; the page on schedules says what each does.
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
        # Each import has a spec of its own; a script has none, and a prompt neither.
        loaded=caller.f_globals.get("__spec__") or caller.f_globals.get("__file__"),
        is_at_top=caller.f_code.co_name == "<module>",
    )
    declarations.add(declared)
    return declared


def _is_task(what: object) -> bool:
    return isinstance(what, HorsiesTask)


def _is_definition(what: object) -> bool:
    return isinstance(what, type) and issubclass(what, WorkflowDefinition) and what._meta.is_registered
