"""The lookout: what there is to claim, what is due, and what a worker is told by the tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .claim_budget import ClaimBudget
from .config import WorkerConfig
from .limit_releaser import LimitReleaser
from .listener import Listener
from .poll_interval import BUSY_INTERVAL, MIN_PAUSE, NOTIFIED_FACTOR, PollInterval
from .queue_selector import MAX_PAUSE, MAX_PAUSE_UNNOTIFIED
from .slot_pool import SlotPool
from .store import PollView, WorkerStore


class QueuePoller:
    """Looks when the cadence says so, or when it ``is_asked``."""

    def __init__(
        self,
        config: WorkerConfig,
        store: WorkerStore,
        pools: Sequence[SlotPool],
        budget: ClaimBudget,
        listener: Listener,
        poll_interval: PollInterval,
        releaser: LimitReleaser,
    ) -> None:
        self._config = config
        self._store = store
        self._pools = pools
        self._budget = budget
        self._listener = listener
        self._poll_interval = poll_interval
        self._releaser = releaser
        self.is_asked = True
        self.is_held_back = False
        self._has_found = False

    @property
    def cannot_wait(self) -> bool:
        """Whether to look although there is enough to do."""
        return self._budget.has_room() and self._poll_interval.is_due_while_busy(is_asked=self.is_asked)

    def is_due_first(self, *, was_busy: bool) -> bool:
        """Whether to look before the next claim.

        What queues say may have changed; and a busy worker claims from the queues that it knows of: it is to hear of
        others. Who was just woken claims at once.
        """
        if self._store.are_policies_stale:
            return self._budget.has_room()
        return was_busy and self.cannot_wait

    @property
    def is_due(self) -> bool:
        """Whether to look: when the cadence says so, and from time to time even if the slots are never idle."""
        if any(pool.has_work and pool.room for pool in self._pools):
            return self.cannot_wait
        return self._budget.has_room() and (self.is_asked or self._poll_interval.is_due())

    def look(self) -> PollView:
        """Look; let in what has become due, and let the lanes know where there is something."""
        view = self._store.poll(self._pools)
        self.is_asked = False
        self.is_held_back = view.is_held_back
        is_told = self._listener.is_alive
        self._poll_interval.longest = (
            self._config.poll_interval * self._config.processes * (NOTIFIED_FACTOR if is_told else 1)
        )
        self._poll_interval.busy_interval = BUSY_INTERVAL if is_told else MIN_PAUSE
        self._store.selector.max_pause = MAX_PAUSE if is_told else MAX_PAUSE_UNNOTIFIED
        if is_overdue := _has_come(view.deferred_in):
            with self._store.transaction():
                self.is_asked = self._store.release_deferred() > 0
        for pool, queues in zip(self._pools, view.queues, strict=True):
            pool.set_queues(queues, is_all=not view.is_partial)
        if view.is_partial:
            self._look_round(view)
        self._poll_interval.record_poll(found=view.has_work, due_in=None if is_overdue else view.deferred_in)
        if _has_come(view.limits_due_in):
            self._releaser.put(self._store.due_limits())
        elif view.limits_due_in is not None:
            self._poll_interval.poll_by(time.monotonic() + view.limits_due_in)
        self._poll_interval.poll_by(self._store.selector.unblocks_at)
        return view

    def _look_round(self, view: PollView) -> None:
        """Go on to the queues that this look has not seen, until there was nothing in any of them."""
        is_hot = any(pool.has_work for pool in self._pools)
        self._has_found = self._has_found or is_hot
        self.is_asked = self.is_asked or (not is_hot and (view.has_more or self._has_found))
        self._has_found = self._has_found and view.has_more


def _has_come(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0
