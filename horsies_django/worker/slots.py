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
from .execution import Run
from .executors import BLOCKED, Executor
from .start_ahead import TOO_LONG, Ahead

#: Queues from which one claim takes at most; which they are is looked up again and again.
MOST_QUEUES: Final = 16

#: Those that come next, at most.
MOST_FURTHER: Final = 2 * MOST

#: Queues that had much to give and are claimed from although a look did not see them, at most.
KEPT: Final = 4


@dataclass(slots=True)
class Lane:
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
    ahead: Ahead
    queues: tuple[str, ...] = ()
    is_partial: bool = False
    deep: tuple[str, ...] = ()
    further: deque[str] = field(default_factory=deque)
    knows_not_all: bool = False
    running: dict[tuple[UUID, int], Run] = field(default_factory=dict)
    watched: set[Run] = field(default_factory=set)
    dated: set[Run] = field(default_factory=set)
    prefetched: deque[ClaimedTask] = field(default_factory=deque)
    moved_at: float = field(default_factory=time.monotonic)
    is_jammed: bool = False
    withdrawn: list[ClaimedTask] = field(default_factory=list)

    @property
    def hot(self) -> bool:
        """Whether there may be something to claim."""
        return bool(self.queues)

    def heat(self, queue_name: str) -> None:
        """There may be something in this queue."""
        if queue_name in self.queues:
            return
        if len(self.queues) < MOST_QUEUES:
            self.queues += (queue_name,)
        else:
            self.knows_not_all = True

    def know(self, queues: Sequence[str], *, is_all: bool = True) -> None:
        """There is something in these queues, those first that have what comes first; not in all there are, perhaps.

        Where a look does not see all, those come first that had much to give, and last those that nobody has come to.
        """
        before = () if is_all else (*self.deep, *queues, *self.queues, *self.further)
        names = tuple(dict.fromkeys(before)) or tuple(queues)
        self.queues = names[:MOST_QUEUES]
        self.further = deque(names[MOST_QUEUES:MOST_FURTHER])
        if is_all:
            self.deep = ()
        self.is_partial = not is_all
        self.knows_not_all = self.is_partial or bool(self.further)

    def learn(self, claims: Sequence[ClaimedTask]) -> None:
        """Where a look does not see all queues: remember those that had more than one task to give.

        One that all of these came from is claimed from alone, until it has no more.
        """
        counts = Counter(claim.queue_name for claim in claims)
        deep = [name for name, count in counts.items() if count > 1]
        self.deep = tuple(dict.fromkeys([*deep, *self.deep]))[:KEPT]
        if len(counts) == len(deep) == 1 and self.hot:
            self.further += [name for name in self.queues if name not in counts]
            self.queues = tuple(deep)

    def cool(self) -> None:
        """There is nothing more in the queues that it claims from: go on to the next."""
        self.queues = tuple(self.further.popleft() for _ in range(min(MOST_QUEUES, len(self.further))))
        if not self.queues:
            self.knows_not_all = False

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
        ahead = 0 if self.is_jammed else max(self.prefetch, self.ahead.size)
        return max(0, self.free + ahead - len(self.prefetched))

    @property
    def longest(self) -> float:
        """Seconds for which the oldest body has been running; 0 if there is none."""
        return next((max(0.0, time.monotonic() - run.began) for run in self.running.values()), 0.0)

    @property
    def is_fed(self) -> bool:
        """Whether something waits for a slot. A coroutine has one: it waits for the event loop."""
        return not self.is_async and self.executor.waiting() is not None

    @property
    def gives_back_at(self) -> float:
        """When the first of those that have not begun has waited too long."""
        waiting = self.executor.waiting()
        if waiting is None:
            return float("inf")
        if self.free < 0:
            return waiting.submitted + TOO_LONG
        patience = waiting.submitted + BLOCKED if self.is_async else float("inf")
        return min([patience, waiting.begins_by, *(run.begins_by for run in self.dated if not run.has_begun)])

    def submit(self, runs: Collection[Run]) -> None:
        """Begin these bodies, as soon as there is a slot for each."""
        if not runs:
            return
        self.moved_at = time.monotonic()
        for run in runs:
            self.running[run.task_id, run.claim.claim] = run
            if run.time_limit is not None:
                self.watched.add(run)
            if run.claim.begins_by is not None:
                self.dated.add(run)
        self.executor.submit(runs)

    def forget(self, run: Run) -> bool:
        """This body has ended, or will not begin; return whether it was one of this lane."""
        if self.running.pop((run.task_id, run.claim.claim), None) is None:
            return False
        self.watched.discard(run)
        self.dated.discard(run)
        self.is_jammed = False
        return True

    def take_back(self, run: Run) -> bool:
        """Take back, to be given back, what will not begin; return whether it was one of this lane."""
        if not self.forget(run):
            return False
        self.withdrawn.append(run.claim)
        return True

    def withdraw(self) -> list[Run]:
        """Take back, to be given back, all that has not begun."""
        return [run for run in self.executor.withdraw() if self.take_back(run)]

    def stall(self, longest: float) -> bool:
        """Whether what was prefetched has waited too long for a slot; then nothing is, until a body ends."""
        if self.prefetched and not self.startable and time.monotonic() - self.moved_at > longest:
            self.is_jammed = True
        return self.is_jammed
