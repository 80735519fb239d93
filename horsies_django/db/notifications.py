"""Notifications that wake idle workers, rate-limited so that sending them costs nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from . import postgres
from .errors import is_notify_queue_full
from .on_commit import on_commit_robust

logger = logging.getLogger("horsies_django")

#: Notifications that one process may send for one queue in a row.
BURST: Final = 32

#: After these, one more for each so many times the duration of the last statement that notified. A NOTIFY takes a
#: cluster-wide lock until its commit is flushed. So the fewer commits the server can take, the fewer are notifications,
#: and however many processes send at once, most of their commits share a flush.
DURATION_FACTOR: Final = 1

#: The bounds of that pause, in seconds.
MIN_INTERVAL: Final = 0.001
MAX_INTERVAL: Final = 0.025


#: Seconds for which a process sends nothing after the server's queue of notifications was full: a listener that leaves
#: its transaction open fills it. Workers poll meanwhile.
PAUSE_WHEN_FULL: Final = 60.0

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
    """A token bucket for each payload, as the moment at which it would be full."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}  # that moment, and the seconds of a token
        self._paused_until: dict[str, float] = {}  # by the alias of the database

    def is_paused(self, alias: str) -> bool:
        return time.monotonic() < self._paused_until.get(alias, 0.0)

    def pause(self, alias: str) -> None:
        self._paused_until[alias] = time.monotonic() + PAUSE_WHEN_FULL

    def allows(self, alias: str, payload: str, burst: int) -> bool:
        with self._lock:
            full_at, interval = self._buckets.get((alias, payload), (0.0, 0.0))
        now = time.monotonic()
        return full_at - now <= (burst - 1) * interval and now >= self._paused_until.get(alias, 0.0)

    def mark_sent(self, alias: str, payload: str, began: float) -> None:
        """Record that a statement which began at this monotonic time has sent a payload and is committed."""
        now, key = time.monotonic(), (alias, payload)
        interval = max(MIN_INTERVAL, min(DURATION_FACTOR * (now - began), MAX_INTERVAL))
        with self._lock:
            if len(self._buckets) >= MAX_REMEMBERED:
                self._buckets.clear()
            full_at, _ = self._buckets.get(key, (now, interval))
            self._buckets[key] = (max(full_at, now) + interval, interval)


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


#: The prefix of the payload that has one worker, whose id follows, read what its row asks of it: to stop, say.
WORKER_REQUEST: Final = "#"


#: The payload that has schedulers look at the schedules again.
SCHEDULES_CHANGED: Final = "@"


def notify_schedules_changed_after_commit(alias: str) -> None:
    """Notify schedulers, once the current transaction has committed, that the next run of a schedule has changed.

    Each change is sent: the next look of a scheduler that misses one may be seconds away.
    """
    if postgres.can_listen(alias):
        on_commit_robust(alias, send, alias, [SCHEDULES_CHANGED])


def notify_worker_request_after_commit(alias: str, worker_id: str) -> None:
    """Notify a worker, once the current transaction has committed, that its row asks something else of it.

    Each change is sent: a worker that misses the last one would go on as before for seconds.
    """
    if postgres.can_listen(alias):
        on_commit_robust(alias, send, alias, [WORKER_REQUEST + worker_id])


def ping_after_commit(alias: str, worker_id: str) -> None:
    """Send a worker's id, for its own listener to receive, once the current transaction has committed."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, send, alias, [postgres.PING + worker_id])


def notify_revoked_after_commit(alias: str) -> None:
    """Notify workers, once the current transaction has committed, that running tasks were taken from them."""
    notify_after_commit(alias, REVOKED)


def wake_after_commit(alias: str, queue_name: str, *, later: bool = False, is_async: bool | None = None) -> None:
    """Wake the workers of a queue once the current transaction has committed.

    A failure is only logged: the rows are there, and workers find them with their next poll.
    """
    notify_after_commit(alias, TaskReady(queue_name, later, is_async).dumps())


def notify_after_commit(alias: str, payload: str) -> None:
    """Send a payload once the current transaction has committed, unless the same one was sent just now."""
    if postgres.can_listen(alias):
        on_commit_robust(alias, _notify, alias, payload)


def notify_slot_freed_after_commit(alias: str, queue_name: str) -> None:
    """Notify workers, once the current transaction has committed, that a limited queue may have a free slot."""
    notify_after_commit(alias, SLOT_FREED + queue_name)


def piggyback(connection: BaseDatabaseWrapper, payload: str) -> str | None:
    """Return the payload if an INSERT outside a transaction should send it itself; None if it was sent just now.

    This saves a round trip and a commit. Inside a transaction it would make every commit queue for the cluster-wide
    lock, so :func:`wake_after_commit` sends it after the commit there.
    """
    is_sent = connection.vendor == "postgresql" and _limiter.allows(connection.alias, payload, BURST)
    return payload if is_sent else None


mark_sent: Final = _limiter.mark_sent


def _notify(alias: str, payload: str) -> None:
    # A transaction may have sent many tasks. One notification is for all: the rows of all are committed.
    if _limiter.allows(alias, payload, 1):
        began = time.monotonic()
        send(alias, [payload])
        mark_sent(alias, payload, began)


def send(alias: str, payloads: Iterable[str], channel: str = postgres.CHANNEL) -> None:
    """Notify the listeners of ``channel``. Once the server's queue of notifications is full, pause for a while."""
    if _limiter.is_paused(alias):
        return
    try:
        for payload in payloads:
            postgres.notify(alias, payload, channel)
    except Error as error:
        if not pause_if_full(alias, error):
            raise


def pause_if_full(alias: str, error: Exception) -> bool:
    """Whether an error says that the server's queue of notifications is full. Logs that, and sends none for a while."""
    if not is_notify_queue_full(error):
        return False
    _limiter.pause(alias)
    logger.warning("notifications paused: the server's NOTIFY queue is full retry_in=%.0fs", PAUSE_WHEN_FULL)
    return True
