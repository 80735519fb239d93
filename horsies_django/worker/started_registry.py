"""Memory that a runner shares with its supervisor: which executions have started, whether it is alive, how busy it is.

A task is RUNNING in the table a moment before its function starts. When a runner has died, its supervisor reads here
which functions may have started; the tasks of the others are released as if they had never been claimed. A function
that holds the interpreter's lock, or a signal that stops the process, stops every thread of the runner, so the runner
can't report it: the supervisor reads here that the pulse has stopped, and which execution is over its time limit.
"""

from __future__ import annotations

import math
import mmap
import struct
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ..models.claims import ClaimRef


class ExitReason(StrEnum):
    """Why a runner exits."""

    DONE = "done"
    SPENT = "spent"  # it reached max_tasks_per_child or max_memory_mb
    STOP_REQUESTED = "stop requested"  # an operator asked for it
    STUCK = "stuck"  # only the end of the process stops one of its executions
    FORBIDDEN = "forbidden"  # its role has lost a privilege that it needs
    WRONG_DATABASE = "wrong database"  # its settings name another database than its supervisor's


class Notice(StrEnum):
    """What a runner reports while it works: it receives the database's notifications, and its supervisor does not."""

    LISTENING = "listening"  # notifications arrive
    SCHEDULES_CHANGED = "schedules changed"


if TYPE_CHECKING:
    from ..reaper.crashed import StaleTask

#: Seconds between two pulses of a runner.
PULSE_INTERVAL: Final = 1.0

#: A slot: the task's id, the number of the claim, when the function started, and its time limit in seconds.
_SLOT: Final = struct.Struct("=16sQdd")
_KEY: Final = struct.Struct("=16sQ")
_LIMIT: Final = struct.Struct("=d")
_LIMIT_AT: Final = _KEY.size + 8

#: The number of slots, more than a runner ever uses: it may have 100,000 coroutines. Unused ones take no memory.
_SLOTS: Final = 120_000

#: The header: 1 once an execution has started without a slot of its own; 1 once the worker's row is written; why the
#: runner exits, as an index of _EXIT_REASONS; 1 while it is quiet; how many slots were ever taken; the last pulse; the
#: last heartbeat; the activity; and the boot of a file that outlives the processes.
_HEAD: Final = struct.Struct("=BBBBIdd5Q40s")
_OVERFLOW_AT, _REGISTERED_AT, _EXIT_REASON_AT, _QUIET_AT, _TAKEN_AT, _PULSE_AT, _BEAT_AT = 0, 1, 2, 3, 4, 8, 16
_ACTIVITY_AT: Final = 24
_ACTIVITY: Final = struct.Struct("=5Q")
BOOT_ID_AT: Final = _ACTIVITY_AT + _ACTIVITY.size
_COUNT: Final = struct.Struct("=I")
_TIME: Final = struct.Struct("=d")

_EXIT_REASONS: Final[tuple[ExitReason | None, ...]] = (None, *ExitReason)


class Activity(NamedTuple):
    """How many attempts of a runner have ended, by outcome, and how many slots of each kind are taken."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    threads_taken: int = 0
    async_slots_taken: int = 0


class StartedRegistry:
    """The shared memory: the runner writes, its supervisor reads. Times are monotonic, in seconds.

    A slot that is released keeps its content, which stays true.
    """

    SIZE: Final = _HEAD.size + _SLOT.size * _SLOTS

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)
        self._free: list[Slot] = []
        self._taken = 0

    # Written by the runner.

    def acquire(self) -> Slot:
        """Return a slot for an execution."""
        if self._free:
            return self._free.pop()
        if self._taken < _SLOTS:
            self._taken += 1
            _COUNT.pack_into(self._memory, _TAKEN_AT, self._taken)
            return Slot(self._memory, _HEAD.size + _SLOT.size * (self._taken - 1))
        return Slot(self._memory, 0)

    def release(self, place: Slot | None) -> None:
        """Let another execution have the slot."""
        if place is not None and place.offset:
            self._free.append(place)

    def record_pulse(self) -> None:
        """Record that the interpreter of this process runs."""
        _TIME.pack_into(self._memory, _PULSE_AT, time.monotonic())

    def record_registered(self) -> None:
        """Record that the worker's row is written, which is the first heartbeat as well."""
        self._memory[_REGISTERED_AT] = 1
        self.record_heartbeat()

    def record_heartbeat(self) -> None:
        """Record that a heartbeat is written."""
        _TIME.pack_into(self._memory, _BEAT_AT, time.monotonic())

    def record_quiet(self, is_quiet: bool) -> None:
        """Record whether the runner is quiet. The supervisor records it too, when it sends the command."""
        self._memory[_QUIET_AT] = is_quiet

    def record_exit(self, exit_reason: ExitReason) -> None:
        """Record why the process exits. A process that ends without this has crashed, whatever its status."""
        self._memory[_EXIT_REASON_AT] = _EXIT_REASONS.index(exit_reason)

    def record_activity(self, activity: Activity) -> None:
        """Record what the runner has done so far, and does."""
        _ACTIVITY.pack_into(self._memory, _ACTIVITY_AT, *activity)

    # Read by the supervisor.

    @property
    def activity(self) -> Activity:
        """What the runner has done so far, and does, as of its last tick."""
        return Activity(*_ACTIVITY.unpack_from(self._memory, _ACTIVITY_AT))

    @property
    def last_pulse(self) -> float:
        """When the interpreter of the runner was last seen to run; 0 until it has started."""
        return self._time_at(_PULSE_AT)

    @property
    def last_heartbeat(self) -> float:
        """When the runner last wrote a heartbeat; 0 until it has written its row."""
        return self._time_at(_BEAT_AT)

    @property
    def is_registered(self) -> bool:
        """Whether the runner has registered."""
        return bool(self._memory[_REGISTERED_AT])

    @property
    def is_quiet(self) -> bool:
        """Whether the runner claims nothing until it is resumed."""
        return bool(self._memory[_QUIET_AT])

    @property
    def exit_reason(self) -> ExitReason | None:
        """Why the runner exited; None if it crashed."""
        return _EXIT_REASONS[self._memory[_EXIT_REASON_AT]]

    def is_over_limit(self, grace: float) -> bool:
        """Whether an execution has run ``grace`` seconds longer than its time limit."""
        late = time.monotonic() - grace
        return any(began + limit <= late for _, _, began, limit in self._slots())

    def evidence(self, limits_checked_at: float | None = None, *, is_stopped: bool = False) -> StartedEvidence:
        """Return the evidence of a dead runner's executions.

        ``limits_checked_at`` is the time for the check of time limits. ``is_stopped`` means that the runner was asked
        to stop and that nothing else has ended it.
        """
        places = {(key, claim): (began, began + limit) for key, claim, began, limit in self._slots()}
        return StartedEvidence(
            places,
            all_began=bool(self._memory[_OVERFLOW_AT]),
            limits_checked_at=limits_checked_at,
            is_stopped=is_stopped,
        )

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()

    def _time_at(self, offset: int) -> float:
        moment: float = _TIME.unpack_from(self._memory, offset)[0]
        return moment

    def _slots(self) -> list[tuple[bytes, int, float, float]]:
        (taken,) = _COUNT.unpack_from(self._memory, _TAKEN_AT)
        end = _HEAD.size + _SLOT.size * min(taken, _SLOTS)
        return [place for place in _SLOT.iter_unpack(self._memory[_HEAD.size : end]) if place[2]]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Where one execution records its start and end; at offset 0 the one that executions share when no slot is left."""

    memory: mmap.mmap
    offset: int

    def record_start(self, held: ClaimRef, began: float, limit: float) -> None:
        """Record that the execution of this claim has started, with a time limit in seconds, which may be infinite."""
        if self.offset:
            _SLOT.pack_into(self.memory, self.offset, held.task_id.bytes, held.claim, began, limit)
        else:
            self.memory[_OVERFLOW_AT] = 1

    def record_end(self) -> None:
        """Record that the function has ended: it can't exceed its limit any more."""
        if self.offset:
            _LIMIT.pack_into(self.memory, self.offset + _LIMIT_AT, math.inf)


@dataclass(frozen=True, slots=True)
class StartedEvidence:
    """The evidence in shared memory of a dead runner's executions, for :func:`~..reaper.crashed.recover_all`."""

    places: dict[tuple[bytes, int], tuple[float, float]] = field(repr=False)  # began at, over its limit at
    all_began: bool
    limits_checked_at: float | None
    is_stopped: bool = False

    def has_begun(self, lost: StaleTask) -> bool:
        """Whether the task's function may have started under this claim."""
        return self.all_began or self.began_at(lost) > 0

    def is_over_limit(self, lost: StaleTask) -> bool:
        """Whether the execution was over its time limit when the process ended."""
        _, over_at = self._place(lost)
        return self.limits_checked_at is not None and over_at <= self.limits_checked_at

    def began_at(self, lost: StaleTask) -> float:
        """When the task's function began under this claim; 0 if no slot says it."""
        began, _ = self._place(lost)
        return began

    def _place(self, lost: StaleTask) -> tuple[float, float]:
        return self.places.get((lost.task_id.bytes, lost.claim), (0.0, math.inf))
