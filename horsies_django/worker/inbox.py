"""What a pump waits for: outcomes, and the few things that it can be told."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final, Protocol

from ..core.sync import Mailbox
from ..db.notifications import SlotFreed, TaskReady
from .execution_result import ExecutionResult, NotStarted

#: A wait shorter than this is exact and hears nothing: a selector counts in whole milliseconds.
_SHORT_WAIT: Final = 0.003


class Command(Enum):
    """What a pump can be told."""

    POLL = auto()  # there may be something to claim, or something will be due later
    CHECK_REVOKED = auto()  # a task that runs may have been cancelled, or taken away
    PING = auto()  # the listener wants to hear something
    POLL_SOON = auto()  # there is more of that than anybody can hear: look for it all, soon
    CHECK_STOP_REQUEST = (
        auto()
    )  # the worker's row may ask it to claim no more, let the bodies finish, and be replaced by nobody
    STOP = auto()  # claim no more, let the bodies finish
    ABORT = auto()  # hand back what runs, and go


InboxItem = ExecutionResult | NotStarted | Command | TaskReady | SlotFreed


class Source(Protocol):
    """Hears in the pump's own thread, while that waits."""

    def fileno(self) -> int | None:
        """Return what becomes readable when there is something to hear; None while nothing can be heard."""

    def receive(self, *, is_readable: bool) -> None:
        """Put what has been said into the inbox. Waits for nothing."""


class Inbox:
    """A queue that many threads fill and the pump empties. ``put`` may be called from a signal handler.

    While the pump waits it hears what the database says as well: no other thread has to be woken for that first.
    """

    def __init__(self) -> None:
        self._mailbox: Mailbox[InboxItem] = Mailbox()
        self._source: Source | None = None
        self._is_waiting = False
        self._first_wait = 0.0

    def put(self, item: InboxItem) -> None:
        """Put something in."""
        self._mailbox.put(item)
        if self._is_waiting:  # who begins to wait says so first and looks at what is there then
            self._is_waiting = False
            with suppress(OSError):  # full: it rings already
                self._wakeup_writer.send(b".")

    def attach(self, hearing: Source) -> None:
        """Wait for what is heard from now on, too."""
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ)
        self._source = hearing

    def detach(self) -> None:
        """Hear nothing any more."""
        if self._source is not None:
            self._source = None
            self._selector.close()
            self._wakeup_reader.close()
            self._wakeup_writer.close()

    def take(self, timeout: float) -> list[InboxItem]:
        """Wait for something, at most ``timeout`` seconds, and return all that is there."""
        if self._source is None:
            return self._mailbox.take(timeout)
        self._source.receive(is_readable=False)
        is_short = timeout < _SHORT_WAIT
        items = self._mailbox.take(timeout if is_short else self._first_wait)
        if not items and not is_short:
            self._wait(self._source, timeout - self._first_wait)
            items = self._mailbox.take(0.0)
        # Where ends come one after the other, to ring for the first would take the interpreter from who has the next.
        self._first_wait = _SHORT_WAIT if items else 0.0
        return items

    def _wait(self, hearing: Source, timeout: float) -> None:
        self._is_waiting = True
        try:
            rings = self._select(hearing.fileno(), timeout) if not self._mailbox else []
        finally:
            self._is_waiting = False
        for end in rings:
            if end is self._wakeup_reader:
                self._wakeup_reader.recv(4096)
            else:
                hearing.receive(is_readable=True)

    def _select(self, heard: int | None, timeout: float) -> list[Any]:
        """Wait, and return what has become readable."""
        if heard is not None:  # each time anew, for it may be another connection under the same number
            self._selector.register(heard, selectors.EVENT_READ)
        try:
            return [key.fileobj for key, _ in self._selector.select(timeout)]
        finally:
            if heard is not None:
                self._selector.unregister(heard)
