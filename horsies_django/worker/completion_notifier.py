"""Telling those who wait for a task, or a workflow, that it has ended, as long as there are any."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from django.db import connections

from ..core.sync import Mailbox
from ..db import completions, postgres

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two notifications of one process: each takes a lock that the whole cluster shares.
MIN_INTERVAL: Final = 0.01

#: Seconds until it is tried anew when it can't be told.
_RETRY_INTERVAL: Final = 1.0


class CompletionNotifier:
    """Tells in a thread and on a connection that are there only while somebody wants to know.

    The pump's own connection, and its time, are not spent on it.
    """

    def __init__(self, database: str, name: str) -> None:
        self._database = database
        self._name = f"{name} teller"
        self._subscribed_until = float("-inf")
        self._completed: Mailbox[UUID | None] = Mailbox()
        self._lock = threading.Lock()
        self._is_running = False

    @property
    def has_subscribers(self) -> bool:
        """Whether anybody wants to know."""
        return time.monotonic() < self._subscribed_until

    def renew_subscription(self) -> None:
        """Somebody waits."""
        with self._lock:
            self._subscribed_until = time.monotonic() + completions.SUBSCRIPTION_TTL
            starts, self._is_running = not self._is_running, True
        if starts:
            threading.Thread(target=self._run, name="horsies-teller", daemon=True).start()

    def publish(self, keys: Iterable[UUID]) -> None:
        """These have ended, for good and in the table."""
        if self.has_subscribers:
            for key in keys:
                self._completed.put(key)

    def close(self) -> None:
        """End soon. Who still waits for an end that was not told finds it when it next looks."""
        with self._lock:
            self._subscribed_until = float("-inf")
        self._completed.put(None)

    def _run(self) -> None:
        while self._should_run():
            try:
                with postgres.Line(self._database, None, self._name) as line:
                    while self._should_run():
                        self._publish(line)
            except Exception as error:  # who waits goes on looking
                if postgres.is_lost(error):
                    logger.info("nobody is told of tasks' ends: %s", error)
                else:
                    logger.exception("tasks' ends can't be told of")
                time.sleep(_RETRY_INTERVAL)
        connections.close_all()

    def _should_run(self) -> bool:
        with self._lock:
            self._is_running = self._is_running and self.has_subscribers
            return self._is_running

    def _publish(self, line: postgres.Line) -> None:
        """Wait for ends, tell of all that there are, and keep quiet for a while."""
        if keys := self._completed.take(self._subscribed_until - time.monotonic()):
            line.say(postgres.ENDED, completions.dumps([key for key in keys if key is not None]))
            time.sleep(MIN_INTERVAL)
