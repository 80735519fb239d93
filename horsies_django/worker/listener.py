"""The listener of a runner: wakes the producer when tasks are sent, and passes completions on to waiters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from django.db import Error, NotSupportedError, connections

from ..core.backends import listen_database_of
from ..core.sync import Mailbox
from ..db import completions, notifications, postgres
from ..db.connection import own_connection
from ..db.connection_listener import ConnectionListener
from ..db.listen_thread import ListenThread
from ..db.notifications import (
    MAX_NAME_LENGTH,
    REVOKED,
    SCHEDULES_CHANGED,
    SLOT_FREED,
    WORKER_REQUEST,
    SlotFreed,
    TaskReady,
)
from .config import WorkerConfig
from .inbox import Command, Inbox, InboxItem
from .started_registry import Notice

logger = logging.getLogger("horsies_django.worker")

#: Notifications a second that a runner acts on, and the burst after a pause. Each costs one statement at most; further
#: ones share one poll.
RATE: Final = 200.0
BURST: Final = 100.0

#: Seconds until that poll.
POLL_DELAY: Final = 0.01


def alive_for(config: WorkerConfig) -> float:
    """Return the seconds for which the arrival of one ping counts: workers send one with each heartbeat."""
    return 3 * config.options.recovery.heartbeat_interval


class Listener:
    """LISTENs on the producer's own connection, in its thread; or in another one, if ``listen_database`` is set.

    While it can't, ``is_alive`` is False and the producer polls. ``report`` passes on what the supervisor has to know.

    The producer's own takes the fewest wake-ups between a NOTIFY and the claim: of one server process and of this one,
    which claims itself. On an idle machine the wake-ups are most of the latency.

    LISTEN succeeding proves nothing: behind a pooler that shares connections between transactions, notifications never
    arrive. So the producer notifies its own id now and then, and only its arrival counts.

    Any role that can connect can send notifications. So a notification only makes the producer read the rows, and their
    number a second is limited.
    """

    def __init__(
        self,
        config: WorkerConfig,
        worker_id: str,
        inbox: Inbox,
        report: Callable[[Notice], object] = lambda _: None,
    ) -> None:
        self._config = config
        self._worker_id = worker_id
        self._inbox = inbox
        self._report = report
        self._connection: ConnectionListener | None = None
        self._thread: ListenThread | None = None
        self._completion_notifier = CompletionNotifier(config.database, worker_id)
        self._alive_for = alive_for(config)
        self._pinged_at = float("-inf")
        self._ping_due_at = float("inf")
        self._notification_limit = NotificationLimit()

    @property
    def is_alive(self) -> bool:
        """Whether notifications arrive."""
        return time.monotonic() - self._pinged_at < self._alive_for

    def start(self) -> None:
        """Begin to listen, if the database supports it."""
        database = self._config.database
        if not postgres.can_listen(database):
            return
        completions.register_sink(database, self._completion_notifier)
        if (alias := listen_database_of(database)) == database:
            self._connection = ConnectionListener(database, postgres.CHANNEL)
            self._inbox.attach(self)
            return
        self._ping_due_at = time.monotonic() + self._alive_for
        self._thread = ListenThread(alias, postgres.CHANNEL, f"{self._worker_id} listen", self._receive)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and stop sending completions."""
        self._inbox.detach()
        if self._thread is not None:
            self._thread.stop()
        completions.unregister_sink(self._config.database, self._completion_notifier)
        self._completion_notifier.close()

    @property
    def has_subscribers(self) -> bool:
        """Whether any process waits for the ends of tasks."""
        return self._completion_notifier.has_subscribers

    def record_useful(self) -> None:
        """Record that the last notification has led to a claim: only useless ones are limited."""
        self._notification_limit.give_back()

    def publish_completed(self, keys: Iterable[UUID]) -> None:
        """Send that these tasks have ended. Costs nothing without subscribers."""
        self._completion_notifier.publish(keys)

    def fileno(self) -> int | None:
        """Return the descriptor of the producer's connection; None while it is closed."""
        return None if self._connection is None else self._connection.fileno()

    def receive(self, *, is_readable: bool) -> None:
        """Put notifications that have arrived into the inbox."""
        if self._connection is not None:
            self._receive(self._connection, is_readable=is_readable)

    def _receive(self, connection: ConnectionListener, *, is_readable: bool = True) -> bool:
        """Put notifications that have arrived into the inbox; return whether others may arrive."""
        try:
            if connection.listen():  # notifications from before are lost
                self._inbox.put(Command.POLL)
                self._inbox.put(Command.PING)
                self._report(Notice.SCHEDULES_CHANGED)
            for payload in dict.fromkeys(connection.receive(is_readable=is_readable)):
                self._handle(payload)
            if self._thread is not None and not self.is_alive and time.monotonic() > self._ping_due_at:
                raise NotSupportedError("no notification of the queue's database arrives over listen_database")
        except Error as error:
            self._pinged_at = float("-inf")
            self._ping_due_at = time.monotonic() + self._alive_for
            logger.warning("LISTEN lost, polling until it is back error=%s", error)
            self._inbox.put(Command.POLL)
            return False
        return True

    def _handle(self, payload: str) -> None:
        if payload.startswith(postgres.PING):
            self._handle_ping(payload)
        elif payload == SCHEDULES_CHANGED:
            self._report(Notice.SCHEDULES_CHANGED)
        elif payload == REVOKED:
            self._inbox.put(Command.CHECK_REVOKED)
        elif payload.startswith(WORKER_REQUEST):
            if payload == WORKER_REQUEST + self._worker_id:
                self._inbox.put(Command.CHECK_REQUEST)
        elif (item := self._parse(payload)) is not None:
            if self._notification_limit.allows():
                self._inbox.put(item)
            elif self._notification_limit.is_first_refusal():
                self._inbox.put(Command.POLL_SOON)

    def _handle_ping(self, payload: str) -> None:
        if payload == postgres.PING + self._worker_id:
            self._pinged_at = time.monotonic()
            self._report(Notice.LISTENING)
        elif payload == postgres.SUBSCRIBE:
            self._completion_notifier.renew_subscription()

    def _parse(self, payload: str) -> InboxItem | None:
        """Return the inbox item for a payload; None if it is malformed or of a queue that this worker ignores."""
        if payload.startswith(SLOT_FREED):
            name = payload[len(SLOT_FREED) :]
            return SlotFreed(name) if len(name) <= MAX_NAME_LENGTH and self._config.serves(name) else None
        task_ready = TaskReady.loads(payload)
        if task_ready is None or not self._config.serves(task_ready.queue_name):
            return None
        return Command.POLL if task_ready.later else task_ready


class NotificationLimit:
    """A token bucket of notifications. Those that it refuses share one poll after :data:`POLL_DELAY` seconds."""

    def __init__(self) -> None:
        self._tokens = BURST
        self._filled_at = time.monotonic()
        self._refused_at = float("-inf")

    def allows(self) -> bool:
        """Take a token; return whether there was one."""
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give_back(self) -> None:
        """Put a token back."""
        self._tokens = min(BURST, self._tokens + 1)

    def is_first_refusal(self) -> bool:
        """Whether no other refusal is waiting for its poll."""
        now = time.monotonic()
        if now - self._refused_at < POLL_DELAY:
            return False
        self._refused_at = now
        return True


#: Minimum seconds between two notifications of one process: each takes a lock of the whole cluster.
MIN_INTERVAL: Final = 0.01

#: Seconds until the next attempt after a failure.
_RETRY_INTERVAL: Final = 1.0


class CompletionNotifier:
    """Sends completions in a thread and on a connection that exist only while there are subscribers.

    So neither the producer's connection nor its time is spent on them.
    """

    def __init__(self, database: str, name: str) -> None:
        self._database = database
        self._name = f"{name} notify"
        self._subscribed_until = float("-inf")
        self._completed: Mailbox[UUID | None] = Mailbox()
        self._lock = threading.Lock()
        self._is_running = False

    @property
    def has_subscribers(self) -> bool:
        """Whether any process has subscribed."""
        return time.monotonic() < self._subscribed_until

    def renew_subscription(self) -> None:
        """Note that a process waits for completions."""
        with self._lock:
            self._subscribed_until = time.monotonic() + completions.SUBSCRIPTION_TTL
            is_starting, self._is_running = not self._is_running, True
        if is_starting:
            threading.Thread(target=self._run, name="horsies-completion-notifier", daemon=True).start()

    def publish(self, keys: Iterable[UUID]) -> None:
        """Send the completions of these tasks or workflows, whose ends are committed."""
        if self.has_subscribers:
            for key in keys:
                self._completed.put(key)

    def close(self) -> None:
        """Stop soon. A waiter that misses a completion finds it with its next poll."""
        with self._lock:
            self._subscribed_until = float("-inf")
        self._completed.put(None)

    def _run(self) -> None:
        with own_connection(self._database, self._name, waits=True):
            while self._should_run():
                try:
                    connections[self._database].ensure_connection()
                    self._publish()
                except Exception as error:  # waiters go on polling
                    if isinstance(error, Error):
                        logger.info("completions not sent error=%s", error)
                    else:  # a receiver of connection_created is the project's code
                        logger.exception("completions not sent")
                    connections[self._database].close()
                    time.sleep(_RETRY_INTERVAL)

    def _should_run(self) -> bool:
        with self._lock:
            self._is_running = self._is_running and self.has_subscribers
            return self._is_running

    def _publish(self) -> None:
        """Wait for completions, send all that there are, and pause."""
        if keys := self._completed.take(self._subscribed_until - time.monotonic()):
            payloads = completions.dumps([key for key in keys if key is not None])
            notifications.send(self._database, payloads, postgres.COMPLETIONS)
            time.sleep(MIN_INTERVAL)
