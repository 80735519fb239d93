"""Sends the completions of tasks and workflows while any process has subscribed to them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from django.db import connections

from ..core.sync import Mailbox
from ..db import completions, notifications, postgres

logger = logging.getLogger("horsies_django.worker")

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
        while self._should_run():
            try:
                with postgres.NotifyConnection(self._database, None, self._name) as connection:
                    while self._should_run():
                        self._publish(connection)
            except Exception as error:  # waiters go on polling
                if postgres.is_lost(error):
                    logger.info("completions not sent error=%s", error)
                else:
                    logger.exception("completion notifier failed")
                time.sleep(_RETRY_INTERVAL)
        connections.close_all()

    def _should_run(self) -> bool:
        with self._lock:
            self._is_running = self._is_running and self.has_subscribers
            return self._is_running

    def _publish(self, connection: postgres.NotifyConnection) -> None:
        """Wait for completions, send all that there are, and pause."""
        if keys := self._completed.take(self._subscribed_until - time.monotonic()):
            payloads = completions.dumps([key for key in keys if key is not None])
            notifications.send_on(connection, self._database, payloads, postgres.COMPLETIONS)
            time.sleep(MIN_INTERVAL)
