"""Releases tasks that concurrency limits block, once a task of this worker has ended and made room."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ..db.errors import row_by_row
from ..models.concurrency_limiter import KEYS_PER_TRANSACTION, NONE_RELEASED, Released, release_waiting
from .slot_pool import SlotPool

logger = logging.getLogger("horsies_django.worker")

#: Seconds after which a release starts no further batch: executions end meanwhile.
TIME_SLICE: Final = 0.005

#: While executions run, limits with many blocked tasks get one of this many time slices.
SLICE_SHARE: Final = 5

#: Seconds until the next attempt at a limit that another worker is releasing at.
LOCKED_PAUSE: Final = 0.005


class LimitReleaser:
    """Remembers the keys of limits that may have room, and releases blocked tasks there. It waits for no lock.

    A reaper checks the limits that a dead worker leaves behind. Times are monotonic, in seconds.
    """

    def __init__(self, database: str, pools: Sequence[SlotPool]) -> None:
        self._release = partial(release_waiting, database)
        self._pools = pools
        self._keys: dict[str, None] = {}
        self._paused_until = float("-inf")
        self.next_at = float("inf")

    def __bool__(self) -> bool:
        """Whether any limit is left to check."""
        return bool(self._keys)

    @property
    def is_due(self) -> bool:
        """Whether it is time to check a limit."""
        return time.monotonic() >= self.next_at

    def add(self, keys: Iterable[str | None]) -> None:
        """Check the limits of these keys soon."""
        if new := {key: None for key in keys if key is not None}:
            self._keys |= new
            self.next_at = min(self.next_at, max(self._paused_until, time.monotonic()))

    def release(self) -> Iterator[Released]:
        """Release blocked tasks at limits for one time slice; yield what each transaction has released."""
        began = now = time.monotonic()
        busy = dict[str, None]()
        while self._keys and now < began + TIME_SLICE:
            batch = list(islice(self._keys, KEYS_PER_TRANSACTION))
            parts = row_by_row(batch, self._release, _leave)
            for key in batch:
                del self._keys[key]
            busy |= dict.fromkeys(key for part in parts for key in part.busy)
            yield from parts
            now = time.monotonic()
        has_running = any(pool.running for pool in self._pools)
        self._paused_until = now + (now - began) * (SLICE_SHARE - 1) if self._keys and has_running else now
        self._keys |= busy
        self.next_at = max(self._paused_until, now + LOCKED_PAUSE if busy else now) if self._keys else float("inf")


def _leave(key: str, error: Exception) -> Released:
    logger.error("limit can't be released key=%r: left to the reaper", key, exc_info=error)
    return NONE_RELEASED
