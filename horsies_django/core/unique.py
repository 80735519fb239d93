"""``Unique``: which calls of a task count as equal, for how long, and how a conflict is resolved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal, Self

from .option_parsers import DurationOption, parse_duration
from .status import TASK_LIVE_STATES, TaskStatus


class UniqueUntil(StrEnum):
    """The event that makes a task release its unique key, as stored in its row; NULL means DONE.

    RELEASED is not an option: it marks a row that has released its key earlier than its state implies.
    """

    STARTED = "started"
    DONE = "done"
    SUCCESS = "success"
    PERIOD = "period"
    RELEASED = "released"


#: The states in which a task holds its key, by the releasing event.
HOLDING: Final[Mapping[UniqueUntil, frozenset[TaskStatus]]] = {
    UniqueUntil.STARTED: frozenset({TaskStatus.PENDING, TaskStatus.CLAIMED}),
    UniqueUntil.DONE: TASK_LIVE_STATES,
    UniqueUntil.SUCCESS: frozenset(TaskStatus) - {TaskStatus.COMPLETED},
    UniqueUntil.PERIOD: frozenset(TaskStatus),
}

#: The names that ``by`` accepts besides parameters.
ARGUMENTS: Final = frozenset({"args", "kwargs"})
RESERVED: Final = ARGUMENTS | {"task", "queue"}

_CONFLICTS: Final = ("skip", "replace", "raise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """At most one task at a time for equal calls.

    ``by`` lists what equal calls share besides the task: ``"args"`` or ``"kwargs"`` (all arguments, however they are
    passed), names of parameters, ``"queue"``. ``("task",)`` makes all calls of the task equal. ``key`` replaces ``by``:
    a format string over the parameters, or a callable over the arguments that returns a text. Tasks can share a key.

    ``until`` is the event that releases the key: ``"started"``, ``"done"`` (whatever the outcome) or ``"success"``.
    ``states`` says the same by listing the states that hold the key. ``period`` limits how long a task holds the key,
    from its due time on; without ``until`` the task holds it for that period, whatever its state.

    ``on_conflict`` resolves a call whose key is taken: ``"skip"`` returns the handle of the existing task,
    ``"replace"`` gives that task the arguments, options and time of the new call, ``"raise"`` raises UniqueConflict.

    Durations are seconds, a timedelta or a text like ``"1h"``. Raises ValueError, saying what is allowed.

    >>> Unique(by=("user_id",), until="success", on_conflict="raise").until
    <UniqueUntil.SUCCESS: 'success'>
    """

    by: Collection[str] = ("args",)
    key: str | Callable[..., str] | None = None
    until: Literal["started", "done", "success"] | UniqueUntil | None = None
    states: Collection[TaskStatus] | None = None
    period: DurationOption | None = None
    on_conflict: Literal["skip", "replace", "raise"] = "skip"
    wait: DurationOption | None = None
    max_wait: DurationOption | None = None

    def __post_init__(self) -> None:
        _set(self, "by", _names(self.by))
        if self.key is not None and not callable(self.key) and not (isinstance(self.key, str) and self.key):
            raise ValueError(f"key is {self.key!r}; allowed: a text, or a callable that returns one.")
        for name in ("period", "wait", "max_wait"):
            _set(self, name, _span(name, getattr(self, name)))
        if self.on_conflict not in _CONFLICTS:
            raise ValueError(f"on_conflict is {self.on_conflict!r}; allowed: {', '.join(map(repr, _CONFLICTS))}.")
        _set(self, "until", self._until())
        if self.wait is not None and (self.on_conflict != "replace" or self.until != UniqueUntil.STARTED):
            raise ValueError("wait is for calls that replace one another until one is started: Unique.debounce().")
        if self.max_wait is not None and not (self.delay and self.limit and self.limit >= self.delay):
            raise ValueError(f"max_wait is {self.max_wait!r}; allowed: beside wait, and no less than that.")

    @classmethod
    def debounce(
        cls,
        wait: DurationOption,
        *,
        max_wait: DurationOption | None = None,
        by: Collection[str] = ("args",),
        key: str | Callable[..., str] | None = None,
    ) -> Self:
        """Run once, ``wait`` after the last call, with its arguments; ``max_wait`` after the first at the latest."""
        return cls(by=by, key=key, until="started", on_conflict="replace", wait=wait, max_wait=max_wait)

    @classmethod
    def throttle(
        cls, period: DurationOption, *, by: Collection[str] = ("args",), key: str | Callable[..., str] | None = None
    ) -> Self:
        """Run at most once in each ``period``: the first call runs, later ones get its handle."""
        return cls(by=by, key=key, period=period)

    @property
    def delay(self) -> timedelta | None:
        """The delay of the task after the last call, if later calls postpone it."""
        return self.wait if isinstance(self.wait, timedelta) else None

    @property
    def limit(self) -> timedelta | None:
        """The longest delay after the first call, if later calls postpone the task."""
        return self.max_wait if isinstance(self.max_wait, timedelta) else None

    def _until(self) -> UniqueUntil:
        if self.states is not None:
            return self._until_by_states(self.states)
        if self.until is None:
            if self.period is not None:
                return UniqueUntil.PERIOD
            # A started task can't be replaced.
            return UniqueUntil.STARTED if self.on_conflict == "replace" else UniqueUntil.DONE
        allowed = {str(until) for until in (UniqueUntil.STARTED, UniqueUntil.DONE, UniqueUntil.SUCCESS)}
        if self.until not in allowed and not (self.until == UniqueUntil.PERIOD and self.period is not None):
            raise ValueError(f"until is {self.until!r}; allowed: 'started', 'done' or 'success'.")
        return UniqueUntil(self.until)

    def _until_by_states(self, states: Collection[TaskStatus]) -> UniqueUntil:
        until = (
            None if isinstance(states, str) else next((u for u, held in HOLDING.items() if held == set(states)), None)
        )
        if until is None or (until == UniqueUntil.PERIOD and self.period is None):
            allowed = "; ".join(
                ", ".join(status for status in TaskStatus if status in states) for states in HOLDING.values()
            )
            raise ValueError(f"states is {states!r}; allowed: {allowed} (all of them beside a period).")
        if self.until is not None and self.until != until:
            raise ValueError(f"states says until {str(until)!r} and until is {self.until!r}; one of them is enough.")
        return until


def _set(unique: Unique, name: str, value: Any) -> None:
    object.__setattr__(unique, name, value)


def _names(by: object) -> tuple[str, ...]:
    names = () if isinstance(by, str) or not isinstance(by, Collection) else tuple(by)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(
            f"by is {by!r}; allowed: a tuple of 'args', 'kwargs', 'task', 'queue' and names of parameters."
        )
    return names


def _span(name: str, value: object) -> timedelta | None:
    if value is None:
        return None
    try:
        span = parse_duration(value)
    except ValueError:
        span = None
    if not span:
        raise ValueError(f'{name} is {value!r}; allowed: seconds above 0, a timedelta, a text like "90s", "12h", "7d".')
    return span
