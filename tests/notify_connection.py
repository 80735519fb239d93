"""A connection outside Django that sends and receives notifications."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from django.db import connections


class NotifyConnection(psycopg.Connection[tuple[object, ...]]):
    """A connection to the database of the tests that may listen to a channel."""

    @classmethod
    def open(cls, channel: str = "test_unused") -> NotifyConnection:
        """Open a connection that listens to the channel."""
        parameters = connections["default"].get_connection_params()
        for key in ("cursor_factory", "context"):  # of Django, not of psycopg
            parameters.pop(key, None)
        connection = cls.connect(**parameters, autocommit=True)
        connection.execute(f"LISTEN {channel}")
        return connection

    def receive(self, timeout: float) -> list[str]:
        """Return the notifications that have arrived; wait at most ``timeout`` seconds for the first."""
        return [notice.payload for notice in self.notifies(timeout=timeout, stop_after=1)]

    def send(self, channel: str, payloads: Iterable[str]) -> None:
        """Notify the listeners of a channel."""
        for payload in payloads:
            self.execute("SELECT pg_notify(%s, %s)", [channel, payload])
