"""A listener for the completions of tasks: one connection, in one thread, for everything that waits in a process."""

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

from . import completions, notifications, postgres

logger = logging.getLogger("horsies_django")

#: Seconds for which the listener stays connected without subscribers. PostgreSQL gives DROP DATABASE five seconds until
#: other connections must be gone.
LINGER: Final = 2.0

_FIRST_PAUSE: Final = 1.0
_MAX_PAUSE: Final = 60.0


class Subscriber(Protocol):
    """Waits for completions."""

    def on_completed(self, short_keys: Collection[str]) -> None:
        """Tasks with these keys have ended."""


class CompletionListener:
    """Listens while there are subscribers. When it can't listen, subscribers poll, as they always do."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._subscribers: WeakSet[Subscriber] = WeakSet()
        self._listen_until = float("-inf")
        self._is_running = False
        self._retry_at = float("-inf")
        self._pause = _FIRST_PAUSE

    def subscribe(self, subscriber: Subscriber) -> None:
        """Notify ``subscriber`` of completions for a while. Call it again as long as completions are awaited."""
        now = time.monotonic()
        with self._lock:
            self._subscribers.add(subscriber)
            self._listen_until = now + LINGER
            is_starting = not self._is_running and now >= self._retry_at
            self._is_running = self._is_running or is_starting
        if is_starting:
            threading.Thread(target=self._run, name="horsies-completion-listener", daemon=True).start()

    def _run(self) -> None:
        try:
            with postgres.NotifyConnection(self._database, postgres.COMPLETIONS, "completion listener") as connection:
                self._listen(connection)
        except Exception as error:  # subscribers go on polling
            if postgres.is_lost(error):
                logger.info("completions not received, polling instead error=%s", error)
            else:
                logger.exception("completion listener failed, polling instead")
            with self._lock:
                self._is_running = False
                self._retry_at = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, _MAX_PAUSE)
        finally:
            connections.close_all()

    def _listen(self, connection: postgres.NotifyConnection) -> None:
        renew_at = float("-inf")
        while self._should_listen():
            if time.monotonic() >= renew_at:
                notifications.send_on(connection, self._database, [postgres.SUBSCRIBE], postgres.CHANNEL)
                renew_at = time.monotonic() + completions.RENEW_INTERVAL
            if payloads := connection.receive(min(renew_at, self._listen_until) - time.monotonic()):
                self._pause = _FIRST_PAUSE
                self._notify(set().union(*map(completions.loads, payloads)))

    def _should_listen(self) -> bool:
        with self._lock:
            self._is_running = time.monotonic() < self._listen_until
            return self._is_running

    def _notify(self, short_keys: Collection[str]) -> None:
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber.on_completed(short_keys)


@cache
def _listener(database: str, pid: int) -> CompletionListener:
    """Return the listener of a process: a fork inherits neither the thread nor the connection."""
    return CompletionListener(database)


def subscribe(database: str, subscriber: Subscriber) -> None:
    """Notify ``subscriber`` of completions for a while, if the database supports LISTEN."""
    if postgres.can_listen(database):
        _listener(database, os.getpid()).subscribe(subscriber)
