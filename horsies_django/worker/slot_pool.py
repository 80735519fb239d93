"""A pool of slots for one kind of task, functions or coroutines; and how many short tasks it starts ahead of them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from ..models.claims import ClaimedTask
from ..models.queue_scan import QUEUES_PER_SCAN
from .execution import Execution
from .executor import LOOP_BLOCKED_AFTER, Executor

#: Maximum queues that one claim takes from. Every poll chooses them anew.
MAX_QUEUES: Final = 16

#: Maximum queues that are kept to claim from afterwards.
MAX_NEXT_QUEUES: Final = 2 * QUEUES_PER_SCAN

#: Maximum queues with a backlog that stay in the list although a partial poll did not see them.
MAX_DEEP: Final = 4

#: Seconds that a task which was started ahead of its slot should wait for the slot.
TARGET_WAIT: Final = 0.008

#: Seconds after which a task that still waits is handed back: the tasks before it take longer than expected.
MAX_WAIT: Final = 0.05

#: Weight of the newest execution in the moving averages.
_WEIGHT: Final = 1 / 16

#: Until some executions have ended, assume that they take this many times too long for any to be started ahead.
_INITIAL_FACTOR: Final = 2


class StartAheadTuner:
    """Sets ``size``, the number of tasks to start ahead, from how long executions wait and take. Times are seconds.

    A queue of ``size`` tasks empties in ``TARGET_WAIT`` if the slots get through that many in this time. So nothing is
    started ahead of executions that take much longer, and nothing is hidden from other workers; executions of
    microseconds get as many as ``max_size`` allows. Threads share an interpreter and may get through less than their
    number suggests, so the wait that was measured counts as well.
    """

    def __init__(self, slots: int, max_size: int) -> None:
        self._slots = slots
        self._max_size = max_size
        self._waited = 0.0
        self._seen = 0
        self._duration = _INITIAL_FACTOR * TARGET_WAIT * slots
        self.size = 0

    def record(self, waited: float, took: float) -> None:
        """Add an execution that has waited for its slot, and then taken, so many seconds."""
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)  # a plain mean until there are enough for a moving average
        self._waited += (waited - self._waited) * weight
        self._duration += (took - self._duration) * weight

    def adapt(self) -> None:
        """Set ``size`` from the averages."""
        room = self._slots * TARGET_WAIT / max(self._duration, 1e-6)
        if self._waited > TARGET_WAIT:
            room = min(room, (self._slots + self.size) * TARGET_WAIT / self._waited)
        self.size = min(self._max_size, int(room))

    def reset(self) -> None:
        """Start nothing ahead until executions have been short again for a while."""
        self._duration = _INITIAL_FACTOR * TARGET_WAIT * self._slots
        self.size = 0


@dataclass(slots=True)
class SlotPool:
    """The slots for one kind of task, so that sync and async tasks never compete for each other's slots.

    ``queues`` are the queues that may hold work: a notification or a poll adds to them, and a claim that gets less than
    it asked for empties them. ``running`` has a key of task and claim: a task that was taken back and claimed again has
    two executions for a while, each in a slot of its own. ``watched`` are the executions that have a time limit or were
    asked to stop, and none of them needs a look before ``watch_at``. ``with_deadline`` are those that must start by a
    certain time.
    """

    is_async: bool
    slots: int
    prefetch: int
    executor: Executor
    start_ahead: StartAheadTuner
    queues: tuple[str, ...] = ()
    is_partial: bool = False
    deep: tuple[str, ...] = ()
    next_queues: deque[str] = field(default_factory=deque)
    has_unlisted: bool = False
    running: dict[tuple[UUID, int], Execution] = field(default_factory=dict)
    watched: set[Execution] = field(default_factory=set)
    watch_at: float = float("inf")
    with_deadline: set[Execution] = field(default_factory=set)
    prefetched: deque[ClaimedTask] = field(default_factory=deque)
    progressed_at: float = field(default_factory=lambda: time.monotonic())  # as in Execution
    is_stalled: bool = False
    withdrawn: list[ClaimedTask] = field(default_factory=list)

    # Queues.

    def mark_ready(self, queue_name: str) -> None:
        """Note that this queue may hold work."""
        if queue_name in self.queues:
            return
        if len(self.queues) < MAX_QUEUES:
            self.queues += (queue_name,)
        else:
            self.has_unlisted = True

    def set_queues(self, queues: Sequence[str], *, is_all: bool = True) -> None:
        """Set the queues that hold work, the one with the first task first; ``is_all`` if the poll saw every queue.

        After a partial poll, queues with a backlog stay at the front and queues that no claim has reached yet follow.
        """
        before = () if is_all else (*self.deep, *queues, *self.queues, *self.next_queues)
        names = tuple(dict.fromkeys(before)) or tuple(queues)
        self.queues = names[:MAX_QUEUES]
        self.next_queues = deque(names[MAX_QUEUES:MAX_NEXT_QUEUES])
        if is_all:
            self.deep = ()
        self.is_partial = not is_all
        self.has_unlisted = self.is_partial or bool(self.next_queues)

    def prefer_deep(self, tasks: Sequence[ClaimedTask]) -> None:
        """Remember, where polls are partial, the queues that gave more than one task.

        If all claims came from one queue, the next claims take from that queue alone until it is empty.
        """
        counts = Counter(task.queue_name for task in tasks)
        deep = [name for name, count in counts.items() if count > 1]
        self.deep = tuple(dict.fromkeys([*deep, *self.deep]))[:MAX_DEEP]
        if len(counts) == len(deep) == 1 and self.queues:
            self.next_queues += [name for name in self.queues if name not in counts]
            self.queues = tuple(deep)

    def mark_empty(self) -> None:
        """Note that the current queues are empty, and go on to the next ones."""
        self.queues = tuple(self.next_queues.popleft() for _ in range(min(MAX_QUEUES, len(self.next_queues))))
        if not self.queues:
            self.has_unlisted = False

    # Slots.

    @property
    def free(self) -> int:
        """Slots without an execution; negative if some were started ahead of their slots."""
        return self.slots - len(self.running)

    @property
    def startable(self) -> list[ClaimedTask]:
        """Prefetched tasks for which a slot is free."""
        return [claim for claim, _ in zip(self.prefetched, range(self.free), strict=False)]

    @property
    def room(self) -> int:
        """How many tasks can be claimed: none while the event loop is blocked."""
        if self.executor.is_unresponsive:
            return 0
        ahead = 0 if self.is_stalled else max(self.prefetch, self.start_ahead.size)
        return max(0, self.free + ahead - len(self.prefetched))

    @property
    def oldest_start(self) -> float:
        """When the oldest execution started; infinite if nothing runs."""
        for execution in self.running.values():
            return execution.started_at
        return float("inf")

    @property
    def has_waiting(self) -> bool:
        """Whether a task waits for a slot. A coroutine that has one waits only for the event loop."""
        return not (self.is_async and self.free >= 0) and self.executor.first_waiting() is not None

    @property
    def withdraw_at(self) -> float:
        """When the first execution that has not started has waited too long."""
        waiting = self.executor.first_waiting()
        if waiting is None:
            return float("inf")
        if self.free < 0:
            return waiting.submitted_at + MAX_WAIT
        blocked_at = waiting.submitted_at + LOOP_BLOCKED_AFTER if self.is_async else float("inf")
        deadlines = (execution.start_by for execution in self.with_deadline if not execution.has_started)
        return min([blocked_at, waiting.start_by, *deadlines])

    def is_overdue(self, max_wait: float) -> bool:
        """Whether prefetched tasks have waited more than ``max_wait`` seconds for a slot."""
        if self.prefetched and not self.startable and time.monotonic() - self.progressed_at > max_wait:
            return True
        return self.is_stalled

    def submit(self, executions: Collection[Execution]) -> None:
        """Start these executions, each as soon as it has a slot."""
        if not executions:
            return
        self.progressed_at = time.monotonic()
        for execution in executions:
            self.running[execution.task_id, execution.claimed.claim] = execution
            if execution.time_limit is not None:
                self.watched.add(execution)
                self.watch_at = min(self.watch_at, execution.submitted_at + execution.time_limit)
            if execution.claimed.start_deadline is not None:
                self.with_deadline.add(execution)
        self.executor.submit(executions)

    def watch(self, execution: Execution) -> None:
        """Let the watchdog check this execution soon."""
        self.watched.add(execution)
        self.watch_at = 0.0

    def remove(self, execution: Execution) -> bool:
        """Forget an execution that has ended or will not start; return whether it belonged to this pool."""
        if self.running.pop((execution.task_id, execution.claimed.claim), None) is None:
            return False
        self.watched.discard(execution)
        self.with_deadline.discard(execution)
        self.is_stalled = False
        return True

    def hand_back(self, execution: Execution) -> bool:
        """Put an execution that will not start among the withdrawn ones; return whether it belonged to this pool."""
        if not self.remove(execution):
            return False
        self.withdrawn.append(execution.claimed)
        return True

    def withdraw(self) -> list[Execution]:
        """Put every execution that has not started among the withdrawn ones, and return them."""
        return [execution for execution in self.executor.withdraw() if self.hand_back(execution)]

    def set_prefetched(self, tasks: Collection[ClaimedTask]) -> None:
        """Replace the prefetched tasks."""
        if len(tasks) > len(self.prefetched):
            self.progressed_at = time.monotonic()
        self.prefetched = deque(tasks)
