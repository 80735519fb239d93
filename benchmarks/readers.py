"""Transactions of another application that hold snapshots, so that vacuum can't remove rows that died since."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

import psycopg

#: Seconds of a reader's transaction, and from the beginning of one to that of the next.
_READER_SECONDS: Final = 120.0
_READER_EVERY: Final = 40.0


class Readers:
    """Transactions that overlap, the first of which begins at ``begin``."""

    def __init__(self, url: str, begin: float) -> None:
        self._url, self._next = url, begin
        self._open: deque[tuple[float, psycopg.Connection]] = deque()

    def update(self) -> None:
        """End each transaction whose time is over, and begin one if it is due."""
        now = time.monotonic()
        while self._open and self._open[0][0] <= now:
            self._open.popleft()[1].close()
        if now >= self._next:
            connection = psycopg.connect(self._url)
            self._open.append((now + _READER_SECONDS, connection))
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            # It reads no table of the peer, because a lock would keep some peers from truncating theirs.
            connection.execute("SELECT count(*) FROM pg_class")
            self._next += _READER_EVERY

    def close(self) -> None:
        """End all transactions."""
        while self._open:
            self._open.pop()[1].close()
