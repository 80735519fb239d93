"""Polls the tables for tasks to claim, for what has become due, and for requests to this worker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .claim_budget import ClaimBudget
from .loop_state import LoopState
from .poll_interval import PollInterval
from .slot_pool import SlotPool
from .store import PollView, WorkerStore


@dataclass(frozen=True, slots=True)
class PollResult:
    """What a poll has found and done: ``released`` deferred tasks can be claimed now, ``due_limits`` may have room."""

    view: PollView
    released: int
    due_limits: Collection[str]

    @property
    def is_overdue(self) -> bool:
        """Whether deferred tasks had become due."""
        return _is_due(self.view.deferred_in)


class QueuePoller:
    """Decides when to poll, and polls. The producer applies the result."""

    def __init__(
        self,
        store: WorkerStore,
        pools: Sequence[SlotPool],
        budget: ClaimBudget,
        poll_interval: PollInterval,
        state: LoopState,
    ) -> None:
        self._store = store
        self._pools = pools
        self._budget = budget
        self._poll_interval = poll_interval
        self._state = state

    def is_due_before_claim(self, *, was_busy: bool) -> bool:
        """Whether to poll before the next claim.

        Queue policies may have changed; and a busy worker claims from queues that it knows, so it must learn of others.
        A worker that a notification has just woken claims at once.
        """
        if self._store.are_policies_stale:
            return self._budget.has_room()
        return was_busy and self._is_due_while_busy

    @property
    def is_due(self) -> bool:
        """Whether to poll now: by the interval, and now and then even if the slots are never idle."""
        if any(pool.has_work and pool.room for pool in self._pools):
            return self._is_due_while_busy
        is_busy = any(pool.has_work for pool in self._pools)  # all its slots are taken, and another pool has room
        is_requested = self._state.is_poll_requested and (not is_busy or self._poll_interval.is_rested)
        return self._budget.has_room() and (is_requested or self._poll_interval.is_due())

    @property
    def _is_due_while_busy(self) -> bool:
        is_requested = self._state.is_poll_requested
        return self._budget.has_room() and self._poll_interval.is_due_while_busy(is_requested=is_requested)

    def poll(self) -> PollResult:
        """Poll, and release deferred tasks that have become due."""
        view = self._store.poll(self._pools)
        released = 0
        if _is_due(view.deferred_in):
            with self._store.transaction():
                released = self._store.release_deferred()
        return PollResult(view, released, self._store.due_limits() if _is_due(view.limits_due_in) else ())


def _is_due(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0
