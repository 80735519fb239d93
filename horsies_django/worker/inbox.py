"""The inbox of a producer: results of executions, notifications, and commands."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import Protocol

from ..core.platform import wait
from ..core.sync import WakeEvent
from ..db.notifications import SlotFreed, TaskReady
from .execution import ExecutionResult, NotStarted


class Progress:
    """A context manager for the waits of the producer's loop: for an item of its inbox, or for the database.

    Between two waits it only computes, which takes milliseconds. Otherwise it is stuck, in a lock or in a write.
    Outside of the loop, a runner that starts or ends may take its time.
    """

    def __init__(self) -> None:
        self._is_watched = False
        self._is_waiting = False
        self._waits = 0
        self._waits_seen = -1

    def __enter__(self) -> None:
        self._is_waiting = True

    def __exit__(self, *_: object) -> None:
        self._is_waiting = False
        self._waits += 1

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this block, which is the loop."""
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    def is_made(self) -> bool:
        """Whether the producer is outside of its loop, waits, or has waited since the last call."""
        before, self._waits_seen = self._waits_seen, self._waits
        return not self._is_watched or self._is_waiting or self._waits_seen != before


class Command(Enum):
    """A command to a producer or a supervisor."""

    POLL = auto()  # tasks may be ready, or become due later
    CHECK_REVOKED = auto()  # a running task may have been cancelled or taken away
    PING = auto()  # send a notification to the own listener
    POLL_SOON = auto()  # notifications were dropped: poll for all of them soon
    CHECK_REQUEST = auto()  # the worker's row may ask it to stop for good, without a replacement, or to be quiet
    QUIET = auto()  # claim no more, let running executions end, and stay
    RESUME = auto()  # claim again
    STOP = auto()  # claim no more and let running executions end
    ABORT = auto()  # hand back what runs and exit


class Gather(Enum):
    """Which results wake a waiting producer only once others have gathered."""

    NONE = auto()
    ALL = auto()  # all slots are busy: a result wakes it when a thread has nothing left to run; a notification does not
    RESULTS = auto()  # claims follow each other fast, and take along the results that nothing waits for


InboxItem = ExecutionResult | NotStarted | Command | TaskReady | SlotFreed


class InboxSource(Protocol):
    """Receives messages in the producer's own thread while that waits."""

    def fileno(self) -> int | None:
        """Return the descriptor that becomes readable when messages arrive; None while none can arrive."""

    def receive(self, *, is_readable: bool) -> None:
        """Put messages that have arrived into the inbox, without waiting."""


class Inbox:
    """A queue that many threads fill and the producer empties. ``put`` may be called from a signal handler.

    While the producer waits, it also receives notifications from the database: no other thread needs to be woken first.
    """

    def __init__(self) -> None:
        self.progress = Progress()
        self._items: deque[InboxItem] = deque()
        self._event = WakeEvent()
        self._source: InboxSource | None = None
        self._gather = Gather.NONE
        self._is_polling = False

    def put(self, item: InboxItem) -> None:
        """Add an item and wake the producer."""
        self.add(item)
        if type(item) is not ExecutionResult:
            self.wake()
        elif not (self._gather is Gather.RESULTS and item.may_wait):
            self.wake(has_next=item.execution.has_next)

    def add(self, item: InboxItem) -> None:
        """Add an item. The caller wakes the producer soon with :meth:`wake`."""
        self._items.append(item)

    def wake(self, *, has_next: bool = False) -> None:
        """Wake the producer, unless it gathers results and others follow at once."""
        if has_next and self._gather is Gather.ALL:
            return
        self._event.set()
        if self._is_polling:  # a thread that begins to poll sets this first and then checks the items
            self._is_polling = False
            with suppress(OSError):  # the socket is full: it wakes already
                self._wakeup_writer.send(b".")

    def attach(self, source: InboxSource) -> None:
        """Receive from ``source`` as well from now on."""
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.setblocking(False)
        self._source = source

    def detach(self) -> None:
        """Stop receiving from the source."""
        if self._source is not None:
            self._source = None
            self._wakeup_reader.close()
            self._wakeup_writer.close()

    def take(self, timeout: float, gather: Gather = Gather.NONE) -> list[InboxItem]:
        """Wait for an item, at most ``timeout`` seconds; return all items that are there.

        Results that ``gather`` do not end the wait: a wake-up for each would cost more than the results.
        """
        with self.progress:
            if self._source is not None:
                self._source.receive(is_readable=False)
            self._gather = gather  # before the items are checked: a thread adds its item first
            if not self._items and timeout > 0:
                if gather is Gather.ALL or self._source is None:
                    self._wait(timeout)
                else:
                    self._poll(self._source, timeout)
            self._gather = Gather.NONE
        return [self._items.popleft() for _ in range(len(self._items))]

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        # The event may have been set for an item that was taken since.
        while not self._items and self._event.wait(deadline - time.monotonic()):
            pass

    def _poll(self, source: InboxSource, timeout: float) -> None:
        wakeup, descriptor = self._wakeup_reader.fileno(), source.fileno()
        descriptors = [wakeup] if descriptor is None else [wakeup, descriptor]
        self._is_polling = True
        try:
            ready = [] if self._items else wait(timeout, readable=descriptors)
        finally:
            self._is_polling = False
        if descriptor in ready:
            source.receive(is_readable=True)
        if wakeup in ready:
            self._wakeup_reader.recv(4096)
