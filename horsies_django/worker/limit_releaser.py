"""The gates that a worker looks at: those of the limits of which a task of its own has just ended, say."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from ..db.errors import is_of_the_row
from ..models.concurrency_limiter import GATES, NO_ONE, Admitted
from .claim_budget import ClaimBudget
from .config import WorkerConfig
from .slot_pool import SlotPool
from .store import WorkerStore

logger = logging.getLogger("horsies_django.worker")

#: Seconds of one turn, after which nothing more is begun: bodies end meanwhile.
TIME_SLICE: Final = 0.005

#: Of how many such times one is for gates at which many wait for their turn, while there are bodies to mind.
SLICE_SHARE: Final = 5

#: Seconds until the next try at a gate where somebody else is letting in.
LOCKED_PAUSE: Final = 0.005


class LimitReleaser:
    """Lets in for this worker, and waits for nobody. What it has not come to when it dies a reaper does."""

    def __init__(
        self,
        config: WorkerConfig,
        store: WorkerStore,
        pools: Sequence[SlotPool],
        budget: ClaimBudget,
        due_at: Callable[[float], None],
    ) -> None:
        self._config = config
        self._store = store
        self._pools = pools
        self._budget = budget
        self._due_at = due_at
        self._keys: dict[str, None] = {}
        self._rests_until = float("-inf")
        self.next = float("inf")

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._keys)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look at one."""
        return time.monotonic() >= self.next

    def put(self, keys: Iterable[str | None]) -> None:
        """Look at these soon."""
        if some := {key: None for key in keys if key is not None}:
            self._keys |= some
            self.next = min(self.next, max(self._rests_until, time.monotonic()))

    def open(self) -> int:
        """Let in at some of them; return how many were let in."""
        began = now = time.monotonic()
        total, busy = 0, dict[str, None]()
        while self._keys and now < began + TIME_SLICE:
            some = list(islice(self._keys, GATES))
            admitted = self._release_batch(some)
            for key in some:
                del self._keys[key]
            busy |= dict.fromkeys(admitted.busy)
            total += admitted.lanes.total()
            self._report(admitted)
            now = time.monotonic()
        is_minding = any(pool.running for pool in self._pools)
        self._rests_until = now + (now - began) * (SLICE_SHARE - 1) if self._keys and is_minding else now
        self._keys |= busy
        self.next = max(self._rests_until, now + LOCKED_PAUSE if busy else now) if self._keys else float("inf")
        return total

    def _release_batch(self, keys: Sequence[str]) -> Admitted:
        """Let in at these. One at which that fails for a row is in the way of no other."""
        try:
            return self._store.release_blocked(keys)
        except Exception as error:
            if not is_of_the_row(error):
                raise
            if len(keys) == 1:
                if self._store.isolate_blocked(keys[0]):
                    return self._release_batch(keys)
                logger.exception("limit %r can't be looked at: its gate is left to the reaper", keys[0])
                return NO_ONE
        parts = [self._release_batch([key]) for key in keys]
        pools = sum((part.lanes for part in parts), Counter[tuple[str, bool]]())
        again = [part.again_in for part in parts if part.again_in is not None]
        return Admitted(pools, frozenset().union(*(part.busy for part in parts)), min(again, default=None))

    def _report(self, admitted: Admitted) -> None:
        """Claim them soon, and tell others of what is more than there is room for here."""
        if admitted.again_in is not None:
            self._due_at(time.monotonic() + admitted.again_in)
        for (queue, is_async), count in admitted.lanes.items():
            room = 0
            for pool in self._pools:
                if pool.is_async == is_async and self._config.serves(queue):
                    pool.mark_ready(queue)
                    room = pool.room if self._budget.may_claim else 0
            if count > room:
                self._store.notify_others([(queue, is_async)])
