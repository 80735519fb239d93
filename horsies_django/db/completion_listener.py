"""Hearing that tasks have ended: one connection, in one thread, for all who wait in a process."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection
from functools import cache
from typing import Final, Protocol
from weakref import WeakSet

from django.db import connections

from . import completions, postgres

logger = logging.getLogger("horsies_django")

#: Seconds for which it goes on when nobody waits any more. PostgreSQL gives a DROP DATABASE five to see others leave.
LINGER: Final = 2.0

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


class Subscriber(Protocol):
    """Some who wait."""

    def on_completed(self, marks: Collection[str]) -> None:
        """Tasks with these marks have ended."""


class CompletionListener:
    """Listens as long as somebody attends. When it can't, those who wait look for themselves, as they do anyway."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._subscribers: WeakSet[Subscriber] = WeakSet()
        self._listen_until = float("-inf")
        self._is_running = False
        self._retry_at = float("-inf")
        self._pause = _FIRST_PAUSE

    def subscribe(self, waiters: Subscriber) -> None:
        """Listen for them for a while. Called again and again as long as they wait."""
        now = time.monotonic()
        with self._lock:
            self._subscribers.add(waiters)
            self._listen_until = now + LINGER
            starts = not self._is_running and now >= self._retry_at
            self._is_running = self._is_running or starts
        if starts:
            threading.Thread(target=self._run, name="horsies-ear", daemon=True).start()

    def _run(self) -> None:
        try:
            with postgres.Line(self._database, postgres.ENDED, "ear") as line:
                self._listen(line)
        except Exception as error:  # who waits goes on looking
            if postgres.is_lost(error):
                logger.info("nobody tells of tasks' ends, looking for them: %s", error)
            else:
                logger.exception("tasks' ends can't be listened to, looking for them")
            with self._lock:
                self._is_running = False
                self._retry_at = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        finally:
            connections.close_all()

    def _listen(self, line: postgres.Line) -> None:
        next_say = float("-inf")
        while self._should_listen():
            if time.monotonic() >= next_say:
                line.say(postgres.CHANNEL, [postgres.WAITING])
                next_say = time.monotonic() + completions.RENEW_INTERVAL
            if payloads := line.hear(min(next_say, self._listen_until) - time.monotonic()):
                self._pause = _FIRST_PAUSE
                self._notify(set().union(*map(completions.loads, payloads)))

    def _should_listen(self) -> bool:
        with self._lock:
            self._is_running = time.monotonic() < self._listen_until
            return self._is_running

    def _notify(self, ended: Collection[str]) -> None:
        with self._lock:
            waiters = list(self._subscribers)
        for some in waiters:
            some.on_completed(ended)


@cache
def _listener(database: str, pid: int) -> CompletionListener:
    """By process: a fork inherits neither the thread nor the connection."""
    return CompletionListener(database)


def subscribe(database: str, waiters: Subscriber) -> None:
    """Call ``waiters`` when tasks end, for a while, if the database can be listened to."""
    if postgres.can_listen(database):
        _listener(database, os.getpid()).subscribe(waiters)
