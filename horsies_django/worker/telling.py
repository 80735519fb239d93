"""Telling those who wait for a task that it has ended, as long as there are any."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from .. import ends

#: Seconds between two notifications of one process: each takes a lock that the whole cluster shares.
QUIET: Final = 0.01


class Teller:
    """What the listener's thread has to tell. The pump's own connection, and its time, are not spent on it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._asked_until = float("-inf")
        self._told_at = float("-inf")
        self._ended: deque[UUID] = deque()

    @property
    def is_asked(self) -> bool:
        """Whether anybody wants to know."""
        return time.monotonic() < self._asked_until

    def asked(self) -> None:
        """Somebody waits."""
        self._asked_until = time.monotonic() + ends.TOLD_FOR

    def ended(self, keys: Iterable[UUID]) -> None:
        """These tasks have ended, for good and in the table. May be called from another thread."""
        if self.is_asked:
            self._ended.extend(keys)
            self._ring()

    def wait(self) -> float:
        """Return the seconds until there is something to say."""
        return max(0.0, self._told_at + QUIET - time.monotonic()) if self._ended else float("inf")

    def payloads(self) -> list[str]:
        """Return what is to be said now."""
        if self.wait() > 0:
            return []
        self._told_at = time.monotonic()
        return ends.dumps([self._ended.popleft() for _ in range(len(self._ended))])
