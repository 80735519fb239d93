"""What wakes a thread that waits, and may be rung from a signal handler that interrupts this very thread.

Who sets a :class:`threading.Event` there may wait for the lock that the interrupted code holds. And on Python 3.11 and
3.12 ``SimpleQueue.get(timeout=…)`` waits for ever if its time runs out between two of its steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Seconds of a wait between two looks. A signal that comes just before a thread begins to wait, or comes to another
#: thread, is handled when the main thread next does anything.
MAX_WAIT: Final = 1.0


class WakeEvent:
    """Rung once or more often it wakes one wait, that of now or else the next. Seconds."""

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake who waits."""
        if self._unset.locked():
            with suppress(RuntimeError):  # another thread has rung it since
                self._unset.release()

    def wait(self, timeout: float) -> bool:
        """Wait until it rings, ``timeout`` seconds at most, and return whether it did."""
        return self._unset.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX))


class StopEvent:
    """Whether to stop: said once, for good."""

    def __init__(self) -> None:
        self._wake = WakeEvent()
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether it was said."""
        return self._is_set

    def set(self) -> None:
        """Say it."""
        self._is_set = True
        self._wake.set()

    def wait(self, timeout: float) -> bool:
        """Wait until it is said, ``timeout`` seconds at most, and return whether it was."""
        deadline = time.monotonic() + timeout
        while not self._is_set and (left := deadline - time.monotonic()) > 0:
            self._wake.wait(min(left, MAX_WAIT))
        if self._is_set:
            self._wake.set()  # for another thread that waits
        return self._is_set


class Mailbox(Generic[T]):
    """A queue that many threads fill and one empties."""

    def __init__(self) -> None:
        self._wake = WakeEvent()
        self._items: deque[T] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: T) -> None:
        """Put something in."""
        self._items.append(item)
        self._wake.set()

    def take(self, timeout: float) -> list[T]:
        """Wait until something is there, ``timeout`` seconds at most, and return all that is."""
        if self._items or timeout <= 0:
            return self._taken()
        deadline = time.monotonic() + timeout
        # It may have rung for what has been taken since.
        while self._wake.wait(deadline - time.monotonic()) and not self._items:
            pass
        return self._taken()

    def _taken(self) -> list[T]:
        return [self._items.popleft() for _ in range(len(self._items))]
