"""Shows another thread whether the producer goes on."""

from __future__ import annotations


class Progress:
    """A context manager for the waits of the producer: for an item of its inbox, or for the database.

    Between two waits it only computes, which takes milliseconds. Otherwise it is stuck, in a lock or in a write.
    """

    def __init__(self) -> None:
        self._is_waiting = False
        self._waits = 0
        self._waits_seen = -1

    def __enter__(self) -> None:
        self._is_waiting = True

    def __exit__(self, *_: object) -> None:
        self._is_waiting = False
        self._waits += 1

    def is_made(self) -> bool:
        """Whether the producer waits, or has waited since the last call."""
        before, self._waits_seen = self._waits_seen, self._waits
        return self._is_waiting or self._waits_seen != before
