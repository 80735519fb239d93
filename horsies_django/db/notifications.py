"""Notifications that wake idle workers, rate-limited so that sending them costs nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from . import postgres
from .on_commit import on_commit_robust

#: Minimum seconds between two notifications of one process for one queue. A NOTIFY takes a cluster-wide lock at
#: commit. A worker that was woken polls again after a few times as long, so a skipped notification costs milliseconds.
MIN_INTERVAL: Final = 0.01


#: Maximum queue names whose last notification a process remembers. With more, some are notified more often.
MAX_REMEMBERED: Final = 1_000

#: The queue name that stands for every queue.
ANY_QUEUE: Final = "*"


#: The first character of a payload for tasks that can run now: of either kind, functions, or coroutines.
_PREFIX_BY_KIND: Final = {None: "=", False: "-", True: "~"}
_KIND_BY_PREFIX: Final = {prefix: kind for kind, prefix in _PREFIX_BY_KIND.items()} | {"+": None}

#: Maximum characters of a queue's name.
MAX_NAME_LENGTH: Final = 100


class _Limiter:
    """Tells whether :data:`MIN_INTERVAL` has passed since the same payload was last sent."""

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
    """A notification that a queue has tasks: due now or only ``later``, and of which kind.

    A worker with slots of both kinds then claims for the right one only, at the moment when time counts.
    """

    queue_name: str
    later: bool = False
    is_async: bool | None = None

    def dumps(self) -> str:
        """Return the payload."""
        return ("+" if self.later else _PREFIX_BY_KIND[self.is_async]) + self.queue_name

    @classmethod
    def loads(cls, payload: str) -> TaskReady | None:
        """Parse a payload; return None if it is no notification of this type."""
        prefix, name = payload[:1], payload[1:]
        if prefix not in _KIND_BY_PREFIX or not 0 < len(name) <= MAX_NAME_LENGTH:
            return None
        return cls(name, prefix == "+", _KIND_BY_PREFIX[prefix])


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """A notification that a task of a limited queue has ended, so that workers may claim from the queue again."""

    queue_name: str


#: The prefix of such a payload.
SLOT_FREED: Final = "%"


#: The payload that has workers check whether they still hold the tasks they run.
REVOKED: Final = "!"


#: The prefix of the payload that has one worker, whose id follows, check whether its row asks it to stop.
STOP_REQUESTED: Final = "#"


def notify_stop_request_after_commit(alias: str, worker_id: str) -> None:
    """Notify a worker, once the current transaction has committed, that its row asks it to stop."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, STOP_REQUESTED + worker_id)


def notify_revoked_after_commit(alias: str) -> None:
    """Notify workers, once the current transaction has committed, that running tasks were taken from them."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, REVOKED)


def wake_after_commit(alias: str, queue_name: str, *, later: bool = False, is_async: bool | None = None) -> None:
    """Wake the workers of a queue once the current transaction has committed.

    A failure is only logged: the rows are there, and workers find them with their next poll.
    """
    if postgres.can_listen(alias):
        task_ready = TaskReady(queue_name, later, is_async)
        on_commit_robust(alias, _notify, alias, task_ready.dumps())


def notify_slot_freed_after_commit(alias: str, queue_name: str) -> None:
    """Notify workers, once the current transaction has committed, that a limited queue may have a free slot."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, SLOT_FREED + queue_name)


def piggyback(alias: str, task_ready: TaskReady) -> str | None:
    """Return the payload that an INSERT outside a transaction should send itself; None if one was sent just now.

    This saves a round trip and a commit. Inside a transaction it would make every commit queue for the cluster-wide
    lock, so :func:`wake_after_commit` sends it after the commit there.
    """
    if not postgres.can_listen(alias):
        return None
    payload = task_ready.dumps()
    return payload if _limiter.allows((alias, payload)) else None


def mark_sent(alias: str, payload: str) -> None:
    """Record that a payload was sent and committed."""
    _limiter.mark_sent((alias, payload))


def _notify(alias: str, payload: str) -> None:
    if _limiter.allows((alias, payload)):
        postgres.notify(alias, payload)
        _limiter.mark_sent((alias, payload))
