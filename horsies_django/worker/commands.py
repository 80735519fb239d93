"""What a pump waits for: outcomes, and the few things that it can be told."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final, Protocol

from ..core.sync import Mailbox
from ..db.notifications import Freed, Wake
from .execution_result import Outcome, Unbegun

#: A wait shorter than this is exact and hears nothing: a selector counts in whole milliseconds.
_SHORT: Final = 0.003


class Word(Enum):
    """What a pump can be told."""

    LOOK = auto()  # there may be something to claim, or something will be due later
    REVOKED = auto()  # a task that runs may have been cancelled, or taken away
    PING = auto()  # the listener wants to hear something
    SOON = auto()  # there is more of that than anybody can hear: look for it all, soon
    DISMISS = auto()  # the worker's row may ask it to claim no more, let the bodies finish, and be replaced by nobody
    STOP = auto()  # claim no more, let the bodies finish
    ABORT = auto()  # hand back what runs, and go


Item = Outcome | Unbegun | Word | Wake | Freed


class Hearing(Protocol):
    """Hears in the pump's own thread, while that waits."""

    def fileno(self) -> int | None:
        """Return what becomes readable when there is something to hear; None while nothing can be heard."""

    def hear(self, *, is_readable: bool) -> None:
        """Put what has been said into the inbox. Waits for nothing."""


class Inbox:
    """A queue that many threads fill and the pump empties. ``put`` may be called from a signal handler.

    While the pump waits it hears what the database says as well: no other thread has to be woken for that first.
    """

    def __init__(self) -> None:
        self._mailbox: Mailbox[Item] = Mailbox()
        self._hearing: Hearing | None = None
        self._waits = False
        self._first = 0.0

    def put(self, item: Item) -> None:
        """Put something in."""
        self._mailbox.put(item)
        if self._waits:  # who begins to wait says so first and looks at what is there then
            self._waits = False
            with suppress(OSError):  # full: it rings already
                self._clapper.send(b".")

    def attend(self, hearing: Hearing) -> None:
        """Wait for what is heard from now on, too."""
        self._bell, self._clapper = socket.socketpair()
        for end in (self._bell, self._clapper):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._hearing = hearing

    def ignore(self) -> None:
        """Hear nothing any more."""
        if self._hearing is not None:
            self._hearing = None
            self._selector.close()
            self._bell.close()
            self._clapper.close()

    def take(self, timeout: float) -> list[Item]:
        """Wait for something, at most ``timeout`` seconds, and return all that is there."""
        if self._hearing is None:
            return self._mailbox.take(timeout)
        self._hearing.hear(is_readable=False)
        is_short = timeout < _SHORT
        items = self._mailbox.take(timeout if is_short else self._first)
        if not items and not is_short:
            self._wait(self._hearing, timeout - self._first)
            items = self._mailbox.take(0.0)
        # Where ends come one after the other, to ring for the first would take the interpreter from who has the next.
        self._first = _SHORT if items else 0.0
        return items

    def _wait(self, hearing: Hearing, timeout: float) -> None:
        self._waits = True
        try:
            rings = self._rings(hearing.fileno(), timeout) if not self._mailbox else []
        finally:
            self._waits = False
        for end in rings:
            if end is self._bell:
                self._bell.recv(4096)
            else:
                hearing.hear(is_readable=True)

    def _rings(self, heard: int | None, timeout: float) -> list[Any]:
        """Wait, and return what has become readable."""
        if heard is not None:  # each time anew, for it may be another connection under the same number
            self._selector.register(heard, selectors.EVENT_READ)
        try:
            return [key.fileobj for key, _ in self._selector.select(timeout)]
        finally:
            if heard is not None:
                self._selector.unregister(heard)
