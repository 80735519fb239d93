"""Shows another thread whether the producer's loop goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
