"""Lanes: the slots for one kind of body, and what is in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ..models.claims import ClaimedTask
from .executors import Executor


@dataclass(slots=True)
class Lane:
    """One kind of body and the slots for it, so that sync and async tasks never wait for each other's slots.

    ``hot`` says that there may be more to claim: a claim that got less than it asked for cools the lane, a wake or a
    look that found something heats it. What runs is known by task and claim: a task that was taken back and claimed
    anew has two bodies for a while, and each has its own slot.
    """

    is_async: bool
    slots: int
    prefetch: int
    executor: Executor
    hot: bool = True
    running: dict[tuple[UUID, int], ClaimedTask] = field(default_factory=dict)
    prefetched: deque[ClaimedTask] = field(default_factory=deque)

    @property
    def free(self) -> int:
        """Slots in which no body runs."""
        return self.slots - len(self.running)

    @property
    def startable(self) -> list[ClaimedTask]:
        """Prefetched tasks for which there is a slot."""
        return [claim for claim, _ in zip(self.prefetched, range(self.free), strict=False)]

    @property
    def room(self) -> int:
        """How many tasks could be claimed."""
        return max(0, self.free + self.prefetch - len(self.prefetched))

    def submit(self, claims: Iterable[ClaimedTask]) -> None:
        """Begin these bodies."""
        for claim in claims:
            self.running[claim.task_id, claim.claim] = claim
            self.executor.submit(claim)

    def forget(self, claim: ClaimedTask) -> None:
        """The body of this claim has ended."""
        self.running.pop((claim.task_id, claim.claim), None)
