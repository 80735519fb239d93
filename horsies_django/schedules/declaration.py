"""``schedule()`` declares a schedule in code. Importing the module records it, without a database query."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from ..core.backends import config_of
from ..core.compat import FrameworkTask
from ..core.option_parsers import Retention
from ..core.schedule_patterns import Pattern
from ..core.serialization import encode
from ..enqueue.task import HorsiesTask
from ..workflows.definition import WorkflowDefinition

if TYPE_CHECKING:
    from ..models import Schedule

#: The options of each call of a task. ``good_for`` is in seconds after the send.
CALL_OPTIONS: Final = frozenset(
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

    def __str__(self) -> str:
        return f"schedule {str(self.name)!r} ({self.place})"

    @property
    def backend(self) -> str:
        """The alias of the backend whose schedulers send this schedule."""
        if "backend" in self.options:
            return str(self.options["backend"])
        if isinstance(self.what, FrameworkTask):
            return str(self.what.backend)
        meta = getattr(self.what, "_meta", None)
        return str(getattr(getattr(meta, "options", None), "backend", None) or "default")

    def row(self, project: str) -> Schedule:
        """Return an unsaved row. Raises TypeError or ValueError for values that JSON or a row can't represent."""
        from ..models import Schedule

        if not isinstance(self.args, Sequence) or isinstance(self.args, str | bytes):
            raise TypeError(f"args is {self.args!r}; allowed: a list or a tuple.")
        if not isinstance(self.kwargs, Mapping):
            raise TypeError(f"kwargs is {self.kwargs!r}; allowed: a dict.")
        if isinstance(self.what, HorsiesTask) and self.what.about_row is not None:
            raise ValueError(f"its task is about {self.what.about_row}; allowed: a task without about().")
        typed = config_of(self.backend).serializer == "rich"
        is_task = isinstance(self.what, HorsiesTask)
        columns = {name: value for name, value in self.options.items() if name not in CALL_OPTIONS}
        if columns.get("timezone") is None:
            columns.pop("timezone", None)  # the row's default is the project's time zone
        call_options = {name: value for name, value in self.options.items() if name in CALL_OPTIONS}
        row = Schedule(
            name=self.name,
            source=project,
            task_name=self.what.task_name if is_task else None,
            workflow_name=None if is_task else self.what._meta.options.definition_key,
            timing=self.when.timing,
            args=[encode(value, typed=typed, where=f"args[{place}]") for place, value in enumerate(self.args)],
            kwargs={
                name: encode(value, typed=typed, where=f"argument {name!r}") for name, value in self.kwargs.items()
            },
            options={name: _option(name, value) for name, value in call_options.items() if value is not None},
            **columns | {"backend": self.backend},
        )
        row.declared_enabled = row.enabled
        return row


@dataclass(slots=True)
class Declarations:
    """All declared schedules by name and line. Importing a module again replaces its schedules."""

    by_place: dict[tuple[str, str], list[DeclaredSchedule]] = field(default_factory=dict)

    def add(self, declared: DeclaredSchedule) -> None:
        """Record a schedule. ``manage.py check`` reports duplicate names."""
        here = self.by_place.setdefault((str(declared.name), declared.place), [])
        if declared.loaded is None or any(other.loaded is not declared.loaded for other in here):
            here.clear()  # the module is imported again
        # A loop or helper may declare several schedules on one line; calling a function again declares the same one.
        if declared.is_at_top or declared not in here:
            here.append(declared)

    def __iter__(self) -> Iterator[DeclaredSchedule]:
        """Yield the schedules in the order of declaration."""
        for here in self.by_place.values():
            yield from here


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


def _option(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name == "retention" and isinstance(value, Mapping):
        value = {state: kept.total_seconds() if isinstance(kept, timedelta) else kept for state, kept in value.items()}
    return encode(value, typed=False, where=f"option {name!r}")
