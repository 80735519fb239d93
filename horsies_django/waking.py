"""Telling idle workers that there is work, seldom enough that telling costs nothing."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Final

from django.db import transaction

from . import postgres

#: Seconds between two notifications of one process for one queue. A NOTIFY takes a cluster-wide lock at commit; a
#: worker that was woken looks again within a few times as long, so what is left unsaid costs milliseconds.
QUIET: Final = 0.01


#: The payload that wakes the workers of every queue.
ANY_QUEUE: Final = "*"


class _Limiter:
    """Says whether enough time has passed since it last said yes for the same key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], float] = {}

    def allows(self, key: tuple[str, str]) -> bool:
        now = time.monotonic()
        with self._lock:
            if now - self._last.get(key, -QUIET) < QUIET:
                return False
            self._last[key] = now
            return True


_limiter: Final = _Limiter()


def wake_after_commit(alias: str, queue_name: str) -> None:
    """Wake the workers of a queue once the current transaction has committed.

    A failure is logged and no more: the rows are there, and workers find them when they next look.
    """
    if postgres.can_listen(alias):
        transaction.on_commit(partial(_wake, alias, queue_name), using=alias, robust=True)


def _wake(alias: str, queue_name: str) -> None:
    if _limiter.allows((alias, queue_name)):
        postgres.notify(alias, queue_name)
