"""Telling idle workers that there is work, seldom enough that telling costs nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from . import postgres
from .on_commit import on_commit_robust

#: Seconds between two notifications of one process for one queue. A NOTIFY takes a cluster-wide lock at commit; a
#: worker that was woken looks again within a few times as long, so what is left unsaid costs milliseconds.
MIN_INTERVAL: Final = 0.01


#: So many names a process remembers at most for that: whoever makes up more is told a little more often.
MAX_REMEMBERED: Final = 1_000

#: The name that stands for every queue.
ANY_QUEUE: Final = "*"


#: What a payload begins with that tells of something to be run now: of either kind, of functions, of coroutines.
_PREFIX_BY_KIND: Final = {None: "=", False: "-", True: "~"}
_KIND_BY_PREFIX: Final = {mark: kind for kind, mark in _PREFIX_BY_KIND.items()} | {"+": None}

#: Characters of a queue's name at most.
MAX_NAME_LENGTH: Final = 100


class _Limiter:
    """Says whether enough time has passed since the same was last said."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_at: dict[tuple[str, str], float] = {}

    def allows(self, key: tuple[str, str]) -> bool:
        with self._lock:
            return time.monotonic() - self._sent_at.get(key, -MIN_INTERVAL) >= MIN_INTERVAL

    def mark_sent(self, key: tuple[str, str]) -> None:
        with self._lock:
            if len(self._sent_at) >= MAX_REMEMBERED:
                self._sent_at.clear()
            self._sent_at[key] = time.monotonic()


_limiter: Final = _Limiter()


@dataclass(frozen=True, slots=True)
class TaskReady:
    """What a notification says: which queue, whether its news is due now or only later, and for which kind of body.

    Who has slots for both kinds need not ask for the other one then, at the moment when time counts.
    """

    queue_name: str
    later: bool = False
    is_async: bool | None = None

    def dumps(self) -> str:
        """Return the payload."""
        return ("+" if self.later else _PREFIX_BY_KIND[self.is_async]) + self.queue_name

    @classmethod
    def loads(cls, payload: str) -> TaskReady | None:
        """Read a payload; None if it is none of these."""
        mark, name = payload[:1], payload[1:]
        if mark not in _KIND_BY_PREFIX or not 0 < len(name) <= MAX_NAME_LENGTH:
            return None
        return cls(name, mark == "+", _KIND_BY_PREFIX[mark])


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """What is said of a queue with a limit in which something has ended: who waits for a place may ask for it."""

    queue_name: str


#: What the payload begins with that says so.
SLOT_FREED: Final = "%"


#: The payload that tells workers to look whether they still hold what they run.
REVOKED: Final = "!"


#: What the payload begins with that tells one worker, whose id follows, that its row may ask it to stop.
STOP_REQUESTED: Final = "#"


def notify_stop_request_after_commit(alias: str, worker_id: str) -> None:
    """Tell a worker, once the current transaction has committed, that its row asks it to stop."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, STOP_REQUESTED + worker_id)


def notify_revoked_after_commit(alias: str) -> None:
    """Tell workers, once the current transaction has committed, that some of what they run was taken from them."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, REVOKED)


def wake_after_commit(alias: str, queue_name: str, *, later: bool = False, is_async: bool | None = None) -> None:
    """Wake the workers of a queue once the current transaction has committed.

    A failure is logged and no more: the rows are there, and workers find them when they next look.
    """
    if postgres.can_listen(alias):
        wake = TaskReady(queue_name, later, is_async)
        on_commit_robust(alias, _notify, alias, wake.dumps())


def notify_slot_freed_after_commit(alias: str, queue_name: str) -> None:
    """Tell workers, once the current transaction has committed, that a queue with a limit may have a place."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, SLOT_FREED + queue_name)


def piggyback(alias: str, wake: TaskReady) -> str | None:
    """Return the payload that an INSERT outside a transaction has to say itself, None if it has been said just now.

    That saves a round trip and a commit. Inside a transaction it would make every commit take its turn at the lock, so
    there it is said afterwards, by :func:`wake_after_commit`.
    """
    if not postgres.can_listen(alias):
        return None
    payload = wake.dumps()
    return payload if _limiter.allows((alias, payload)) else None


def mark_sent(alias: str, payload: str) -> None:
    """Take note that a payload has been said, and committed."""
    _limiter.mark_sent((alias, payload))


def _notify(alias: str, payload: str) -> None:
    if _limiter.allows((alias, payload)):
        postgres.notify(alias, payload)
        _limiter.mark_sent((alias, payload))
