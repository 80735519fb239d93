"""What a pump waits for: outcomes, and the few things that it can be told."""

from __future__ import annotations

from enum import Enum, auto
from queue import Empty, SimpleQueue

from ..waking import Wake
from .outcome import Outcome


class Word(Enum):
    """What a pump can be told."""

    LOOK = auto()  # there may be something to claim, or something will be due later
    REVOKED = auto()  # a task that runs may have been cancelled, or taken away
    PING = auto()  # the listener wants to hear something
    STOP = auto()  # claim no more, let the bodies finish
    ABORT = auto()  # hand back what runs, and go


Item = Outcome | Word | Wake


class Inbox:
    """A queue that many threads fill and the pump empties. ``put`` may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.put = self._queue.put

    def take(self, timeout: float) -> list[Item]:
        """Wait for something, at most ``timeout`` seconds, and return all that is there."""
        items: list[Item] = []
        try:
            items.append(self._queue.get(timeout=max(timeout, 0.0)) if timeout > 0 else self._queue.get_nowait())
            items.extend(self._queue.get_nowait() for _ in range(self._queue.qsize()))
        except Empty:
            pass
        return items
