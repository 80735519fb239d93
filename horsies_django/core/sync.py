"""Wake-ups between threads that a signal handler may set while it interrupts the waiting thread itself.

A signal handler that sets a :class:`threading.Event` may block on the lock that the interrupted code holds. And on
Python 3.11 and 3.12 ``SimpleQueue.get(timeout=…)`` waits for ever if its time runs out between two of its steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: The longest wait in seconds before a thread wakes anyway. A signal that arrives just before a thread begins to wait,
#: or in another thread, is handled when the main thread next runs.
MAX_WAIT: Final = 1.0


class WakeEvent:
    """Wakes the current waiter, or the next one if nobody waits. Repeated sets coalesce. Timeouts are in seconds."""

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake the waiter."""
        if self._unset.locked():
            with suppress(RuntimeError):  # another thread has set it since
                self._unset.release()

    def wait(self, timeout: float) -> bool:
        """Wait for the event, at most ``timeout`` seconds; return whether it was set."""
        return self._unset.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX))


class StopEvent:
    """An event that is set once, for good, and wakes every waiter."""

    def __init__(self) -> None:
        self._wake = WakeEvent()
        self._is_set = False
        self._is_woken = False

    @property
    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event."""
        self._is_set = True
        self._wake.set()

    def wake(self) -> None:
        """End one wait that is ``until_woken``: the current one, or else the next."""
        self._is_woken = True
        self._wake.set()

    def wait(self, timeout: float, *, until_woken: bool = False) -> bool:
        """Wait for the event, at most ``timeout`` seconds; return whether it is set."""
        deadline = time.monotonic() + timeout
        while not (self._is_set or (until_woken and self._is_woken)) and (remaining := deadline - time.monotonic()) > 0:
            self._wake.wait(min(remaining, MAX_WAIT))
        if until_woken:
            self._is_woken = False
        if self._is_set:
            self._wake.set()  # wakes the next waiting thread
        return self._is_set


class Mailbox(Generic[T]):
    """A queue that many threads fill and one thread empties."""

    def __init__(self) -> None:
        self._wake = WakeEvent()
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self._wake.set()

    def take(self, timeout: float) -> list[T]:
        """Wait for an item, at most ``timeout`` seconds; return all items that are there."""
        if self._items or timeout <= 0:
            return self._taken()
        deadline = time.monotonic() + timeout
        # The event may have been set for an item that was taken since.
        while self._wake.wait(deadline - time.monotonic()) and not self._items:
            pass
        return self._taken()

    def _taken(self) -> list[T]:
        return [self._items.popleft() for _ in range(len(self._items))]
