"""LISTEN over a connection of its own, for a database whose other connections pass through a pooler."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from django.db import connections

from ..core.platform import wait
from ..core.sync import MAX_WAIT, StopEvent
from .connection import own_connection
from .connection_listener import ConnectionListener

logger = logging.getLogger("horsies_django")

#: Seconds until the next attempt after the connection was lost or could not be made.
RETRY_INTERVAL: Final = 10.0


class ListenThread:
    """A thread that connects to ``alias`` and calls ``receive`` with the listener on this connection.

    It does so when a notification of ``channel`` may have arrived, and at least once a second. ``receive`` returns
    whether it could listen; otherwise it is called again with another connection, ten seconds later. So a slow or
    unreachable server delays no other thread.
    """

    def __init__(self, alias: str, channel: str, name: str, receive: Callable[[ConnectionListener], bool]) -> None:
        self._alias, self._channel, self._name, self._receive = alias, channel, name, receive
        self._stop = StopEvent()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="horsies-listener", daemon=True).start()

    def stop(self) -> None:
        """Have the thread close its connection and end, within a second."""
        self._stop.set()

    def _run(self) -> None:
        with own_connection(self._alias, self._name, is_busy=True, waits=True):
            listener = ConnectionListener(self._alias, self._channel, connects=True)
            while not self._stop.is_set:
                try:
                    is_listening = self._receive(listener)
                except Exception:  # a receiver of connection_created is the project's code
                    logger.exception("LISTEN failed channel=%s", self._channel)
                    is_listening = False
                if is_listening and (descriptor := listener.fileno()) is not None:
                    wait(MAX_WAIT, readable=[descriptor])
                else:
                    connections[self._alias].close()
                    self._stop.wait(RETRY_INTERVAL)
