"""The inbox of a producer: results of executions, notifications, and commands."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final, Protocol

from ..core.sync import Mailbox
from ..db.notifications import SlotFreed, TaskReady
from .execution_result import ExecutionResult, NotStarted

#: A wait shorter than this many seconds is exact but receives no notifications: selectors count whole milliseconds.
_SHORT_WAIT: Final = 0.003


class Command(Enum):
    """A command to a producer or a supervisor."""

    POLL = auto()  # tasks may be ready, or become due later
    CHECK_REVOKED = auto()  # a running task may have been cancelled or taken away
    PING = auto()  # send a notification to the own listener
    POLL_SOON = auto()  # notifications were dropped: poll for all of them soon
    CHECK_STOP_REQUEST = auto()  # the worker's row may ask it to stop for good, without a replacement
    STOP = auto()  # claim no more and let running executions end
    ABORT = auto()  # hand back what runs and exit


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
        self._mailbox: Mailbox[InboxItem] = Mailbox()
        self._source: InboxSource | None = None
        self._is_waiting = False
        self._first_wait = 0.0

    def put(self, item: InboxItem) -> None:
        """Add an item."""
        self._mailbox.put(item)
        if self._is_waiting:  # a thread that begins to wait sets this first and then checks the items
            self._is_waiting = False
            with suppress(OSError):  # the socket is full: it wakes already
                self._wakeup_writer.send(b".")

    def attach(self, source: InboxSource) -> None:
        """Receive from ``source`` as well from now on."""
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ)
        self._source = source

    def detach(self) -> None:
        """Stop receiving from the source."""
        if self._source is not None:
            self._source = None
            self._selector.close()
            self._wakeup_reader.close()
            self._wakeup_writer.close()

    def take(self, timeout: float) -> list[InboxItem]:
        """Wait for an item, at most ``timeout`` seconds; return all items that are there."""
        if self._source is None:
            return self._mailbox.take(timeout)
        self._source.receive(is_readable=False)
        is_short = timeout < _SHORT_WAIT
        items = self._mailbox.take(timeout if is_short else self._first_wait)
        if not items and not is_short:
            self._wait(self._source, timeout - self._first_wait)
            items = self._mailbox.take(0.0)
        # After results, first wait a moment on the mailbox alone: a wake-up for each would cost more than the results.
        self._first_wait = _SHORT_WAIT if items else 0.0
        return items

    def _wait(self, source: InboxSource, timeout: float) -> None:
        self._is_waiting = True
        try:
            ready = self._select(source.fileno(), timeout) if not self._mailbox else []
        finally:
            self._is_waiting = False
        for end in ready:
            if end is self._wakeup_reader:
                self._wakeup_reader.recv(4096)
            else:
                source.receive(is_readable=True)

    def _select(self, descriptor: int | None, timeout: float) -> list[Any]:
        """Wait, and return what has become readable."""
        if descriptor is not None:  # registered anew each time: the number may belong to another connection
            self._selector.register(descriptor, selectors.EVENT_READ)
        try:
            return [key.fileobj for key, _ in self._selector.select(timeout)]
        finally:
            if descriptor is not None:
                self._selector.unregister(descriptor)
