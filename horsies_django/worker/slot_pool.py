"""Lanes: the slots for one kind of body, and what is in them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from ..models.claims import ClaimedTask
from ..models.queue_scan import MOST
from .execution import Execution
from .executors import LOOP_BLOCKED_AFTER, Executor
from .start_ahead import MAX_WAIT, StartAheadTuner

#: Queues from which one claim takes at most; which they are is looked up again and again.
MAX_QUEUES: Final = 16

#: Those that come next, at most.
MAX_NEXT_QUEUES: Final = 2 * MOST

#: Queues that had much to give and are claimed from although a look did not see them, at most.
MAX_DEEP: Final = 4


@dataclass(slots=True)
class SlotPool:
    """One kind of body and the slots for it, so that sync and async tasks never wait for each other's slots.

    It is ``hot`` while there may be more to claim, in ``queues``: a claim that got less than it asked for cools it, a
    wake or a look that found something heats it. What runs is known by task and claim: a task that was taken back and
    claimed anew has two bodies for a while, and each has its own slot. ``watched`` are the runs that have a time limit
    or were told to stop, ``dated`` those that have a time to begin by.
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
    with_deadline: set[Execution] = field(default_factory=set)
    prefetched: deque[ClaimedTask] = field(default_factory=deque)
    progressed_at: float = field(default_factory=time.monotonic)
    is_stalled: bool = False
    withdrawn: list[ClaimedTask] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """Whether there may be something to claim."""
        return bool(self.queues)

    def mark_ready(self, queue_name: str) -> None:
        """There may be something in this queue."""
        if queue_name in self.queues:
            return
        if len(self.queues) < MAX_QUEUES:
            self.queues += (queue_name,)
        else:
            self.has_unlisted = True

    def set_queues(self, queues: Sequence[str], *, is_all: bool = True) -> None:
        """There is something in these queues, those first that have what comes first; not in all there are, perhaps.

        Where a look does not see all, those come first that had much to give, and last those that nobody has come to.
        """
        before = () if is_all else (*self.deep, *queues, *self.queues, *self.next_queues)
        names = tuple(dict.fromkeys(before)) or tuple(queues)
        self.queues = names[:MAX_QUEUES]
        self.next_queues = deque(names[MAX_QUEUES:MAX_NEXT_QUEUES])
        if is_all:
            self.deep = ()
        self.is_partial = not is_all
        self.has_unlisted = self.is_partial or bool(self.next_queues)

    def prefer_deep(self, claims: Sequence[ClaimedTask]) -> None:
        """Where a look does not see all queues: remember those that had more than one task to give.

        One that all of these came from is claimed from alone, until it has no more.
        """
        counts = Counter(claim.queue_name for claim in claims)
        deep = [name for name, count in counts.items() if count > 1]
        self.deep = tuple(dict.fromkeys([*deep, *self.deep]))[:MAX_DEEP]
        if len(counts) == len(deep) == 1 and self.has_work:
            self.next_queues += [name for name in self.queues if name not in counts]
            self.queues = tuple(deep)

    def mark_empty(self) -> None:
        """There is nothing more in the queues that it claims from: go on to the next."""
        self.queues = tuple(self.next_queues.popleft() for _ in range(min(MAX_QUEUES, len(self.next_queues))))
        if not self.queues:
            self.has_unlisted = False

    @property
    def free(self) -> int:
        """Slots in which no body runs; less than none if some are started ahead of their slots."""
        return self.slots - len(self.running)

    @property
    def startable(self) -> list[ClaimedTask]:
        """Prefetched tasks for which there is a slot."""
        return [claim for claim, _ in zip(self.prefetched, range(self.free), strict=False)]

    @property
    def room(self) -> int:
        """How many tasks could be claimed: none for an event loop that is blocked."""
        if self.executor.is_silent:
            return 0
        ahead = 0 if self.is_stalled else max(self.prefetch, self.start_ahead.size)
        return max(0, self.free + ahead - len(self.prefetched))

    @property
    def longest_running(self) -> float:
        """Seconds for which the oldest body has been running; 0 if there is none."""
        return next((max(0.0, time.monotonic() - execution.started_at) for execution in self.running.values()), 0.0)

    @property
    def has_waiting(self) -> bool:
        """Whether something waits for a slot. A coroutine has one: it waits for the event loop."""
        return not self.is_async and self.executor.waiting() is not None

    @property
    def withdraw_at(self) -> float:
        """When the first of those that have not begun has waited too long."""
        waiting = self.executor.waiting()
        if waiting is None:
            return float("inf")
        if self.free < 0:
            return waiting.submitted_at + MAX_WAIT
        patience = waiting.submitted_at + LOOP_BLOCKED_AFTER if self.is_async else float("inf")
        return min(
            [
                patience,
                waiting.start_by,
                *(execution.start_by for execution in self.with_deadline if not execution.has_started),
            ]
        )

    def submit(self, executions: Collection[Execution]) -> None:
        """Begin these bodies, as soon as there is a slot for each."""
        if not executions:
            return
        self.progressed_at = time.monotonic()
        for execution in executions:
            self.running[execution.task_id, execution.claim.claim] = execution
            if execution.time_limit is not None:
                self.watched.add(execution)
            if execution.claim.begins_by is not None:
                self.with_deadline.add(execution)
        self.executor.submit(executions)

    def remove(self, execution: Execution) -> bool:
        """This body has ended, or will not begin; return whether it was one of this lane."""
        if self.running.pop((execution.task_id, execution.claim.claim), None) is None:
            return False
        self.watched.discard(execution)
        self.with_deadline.discard(execution)
        self.is_stalled = False
        return True

    def hand_back(self, execution: Execution) -> bool:
        """Take back, to be given back, what will not begin; return whether it was one of this lane."""
        if not self.remove(execution):
            return False
        self.withdrawn.append(execution.claim)
        return True

    def withdraw(self) -> list[Execution]:
        """Take back, to be given back, all that has not begun."""
        return [execution for execution in self.executor.withdraw() if self.hand_back(execution)]

    def check_stalled(self, longest: float) -> bool:
        """Whether what was prefetched has waited too long for a slot; then nothing is, until a body ends."""
        if self.prefetched and not self.startable and time.monotonic() - self.progressed_at > longest:
            self.is_stalled = True
        return self.is_stalled
