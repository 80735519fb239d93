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
QUIET: Final = 0.01

#: Seconds until it is tried anew when it can't be told.
_PAUSE: Final = 1.0


class Teller:
    """Tells in a thread and on a connection that are there only while somebody wants to know.

    The pump's own connection, and its time, are not spent on it.
    """

    def __init__(self, database: str, name: str) -> None:
        self._database = database
        self._name = f"{name} teller"
        self._asked_until = float("-inf")
        self._ended: Mailbox[UUID | None] = Mailbox()
        self._lock = threading.Lock()
        self._is_on = False

    @property
    def is_asked(self) -> bool:
        """Whether anybody wants to know."""
        return time.monotonic() < self._asked_until

    def asked(self) -> None:
        """Somebody waits."""
        with self._lock:
            self._asked_until = time.monotonic() + completions.TOLD_FOR
            starts, self._is_on = not self._is_on, True
        if starts:
            threading.Thread(target=self._run, name="horsies-teller", daemon=True).start()

    def ended(self, keys: Iterable[UUID]) -> None:
        """These have ended, for good and in the table."""
        if self.is_asked:
            for key in keys:
                self._ended.put(key)

    def close(self) -> None:
        """End soon. Who still waits for an end that was not told finds it when it next looks."""
        with self._lock:
            self._asked_until = float("-inf")
        self._ended.put(None)

    def _run(self) -> None:
        while self._goes_on():
            try:
                with postgres.Line(self._database, None, self._name) as line:
                    while self._goes_on():
                        self._tell(line)
            except Exception as error:  # who waits goes on looking
                if postgres.is_lost(error):
                    logger.info("nobody is told of tasks' ends: %s", error)
                else:
                    logger.exception("tasks' ends can't be told of")
                time.sleep(_PAUSE)
        connections.close_all()

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_on = self._is_on and self.is_asked
            return self._is_on

    def _tell(self, line: postgres.Line) -> None:
        """Wait for ends, tell of all that there are, and keep quiet for a while."""
        if keys := self._ended.take(self._asked_until - time.monotonic()):
            line.say(postgres.ENDED, completions.dumps([key for key in keys if key is not None]))
            time.sleep(QUIET)
