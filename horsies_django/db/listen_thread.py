"""LISTEN over a connection of its own, for a database whose other connections pass through a pooler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from django.db import Error, NotSupportedError, connections

from ..core.platform import wait_readable
from ..core.sync import MAX_WAIT, StopEvent
from . import postgres
from .connection import own_connection

#: Seconds until the next attempt after the connection was lost or could not be made.
RETRY_INTERVAL: Final = 10.0


class ListenThread:
    """Connects to ``alias`` and listens on ``channel`` for the notifications of ``database``, in a thread.

    ``on_listen`` is called whenever it begins to listen, so that notifications from before are lost, ``on_received``
    with payloads, and ``on_lost`` with the error whenever it can't listen; all of them in that thread. So a slow or
    unreachable server delays no other thread.
    """

    def __init__(
        self,
        database: str,
        alias: str,
        channel: str,
        name: str,
        *,
        on_listen: Callable[[], object],
        on_received: Callable[[list[str]], object],
        on_lost: Callable[[Error], object],
    ) -> None:
        self._database, self._alias, self._channel, self._name = database, alias, channel, name
        self._on_listen, self._on_received, self._on_lost = on_listen, on_received, on_lost
        self._stop = StopEvent()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="horsies-listener", daemon=True).start()

    def stop(self) -> None:
        """Have the thread close its connection and end, within a second."""
        self._stop.set()

    def _run(self) -> None:
        with own_connection(self._alias, self._name, is_busy=True, waits=True):
            listener = postgres.ConnectionListener(self._alias, self._channel)
            while not self._stop.is_set:
                try:
                    self._listen(listener)
                except Error as error:
                    connections[self._alias].close()
                    self._on_lost(error)
                    self._stop.wait(RETRY_INTERVAL)

    def _listen(self, listener: postgres.ConnectionListener) -> None:
        connections[self._alias].ensure_connection()
        if listener.listen():
            self._check_database()
            self._on_listen()
        elif not listener.is_listening:
            raise NotSupportedError(f"{self._alias!r} is behind a pooler as well")
        descriptor = listener.fileno()
        assert descriptor is not None
        wait_readable([descriptor], MAX_WAIT)
        if payloads := listener.receive(is_readable=True):
            self._on_received(payloads)

    def _check_database(self) -> None:
        """Raise NotSupportedError if the notifications of the other database would not arrive here."""
        try:
            if postgres.database_identity(self._alias) != postgres.database_identity(self._database):
                raise NotSupportedError(f"{self._alias!r} is another database than {self._database!r}")
        finally:
            connections[self._database].close()
