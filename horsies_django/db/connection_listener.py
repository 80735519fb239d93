"""LISTEN on a connection that also runs statements."""

from __future__ import annotations

from typing import Any, Final

from django.db import Error, connections

#: Maximum notifications that are kept until the next receive: each prompts a poll, and one poll serves them all.
MAX_RECEIVED: Final = 1_000


class ConnectionListener:
    """Receives notifications on this thread's own Django connection, between its statements.

    It does not LISTEN behind a pooler, which gives the connection to another client with the next transaction. Raises
    django.db.Error when the connection is lost, and closes it then, so that the next statement makes a new one; with
    ``connects``, :meth:`listen` does.
    """

    def __init__(self, alias: str, channel: str, *, connects: bool = False) -> None:
        self._wrapper = connections[alias]
        self._channel = channel
        self._connects = connects
        self._listening_on: Any = None
        self._received: list[str] = []

    def fileno(self) -> int | None:
        """Return the descriptor that becomes readable when a notification arrives; None without a connection."""
        if not self._is_open:
            return None
        with self._wrapper.wrap_database_errors:
            return int(self._wrapper.connection.fileno())

    @property
    def _is_open(self) -> bool:
        return self._wrapper.connection is not None and not self._wrapper.connection.closed

    def listen(self) -> bool:
        """LISTEN if the connection is a new one; return whether it is."""
        if self._connects:
            self._wrapper.ensure_connection()
        connection = self._wrapper.connection
        if not self._is_open or connection is self._listening_on or self._wrapper.in_atomic_block:
            return False
        self._listening_on = connection  # even if it fails: a connection that can't listen is not tried again
        self._received.clear()
        if connection.prepare_threshold is None:  # postgres.set_up_session() did not run, or has found a pooler
            return False
        with self._wrapper.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            if cursor.fetchone() != (connection.info.backend_pid,):  # a pooler, and the project prepares statements
                return False
        connection.add_notify_handler(lambda notice: self._on_notification(notice.payload))
        with self._wrapper.cursor() as cursor:
            cursor.execute(f"LISTEN {self._channel}")
        return True

    def receive(self, *, is_readable: bool) -> list[str]:
        """Return the notifications that have arrived, without waiting; with ``is_readable``, read the socket first."""
        if not self._is_open:
            return []
        pgconn = self._wrapper.connection.pgconn
        if is_readable:
            try:
                with self._wrapper.wrap_database_errors:
                    pgconn.consume_input()
            except Error:
                self._wrapper.close()
                raise
        while notice := pgconn.notifies():
            self._on_notification(notice.extra.decode(errors="replace"))
        received, self._received[:] = self._received[:], []
        return received

    def _on_notification(self, payload: str) -> None:
        if len(self._received) < MAX_RECEIVED:
            self._received.append(payload)
