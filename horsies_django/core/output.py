"""``OutputBuffer``: what a run writes and logs, until its worker has stored it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

from .serialization import dumps
from .status import OutputKind

#: Bytes that each chunk counts besides its data: those of its row.
ROW_BYTES: Final = 100

#: The note that follows the last bytes of a kind that one run may store.
CUT: Final = "[cut: more than {limit:,} bytes]"


class Chunk(NamedTuple):
    """A part of the output. ``number`` counts from 1 within a run.

    ``written_at`` is a time of the monotonic clock, in seconds.
    """

    number: int
    kind: OutputKind
    data: Any
    written_at: float


class OutputBuffer:
    """The output of a run in its order, at most ``limits`` bytes of each kind: of text in UTF-8, and of other JSON.

    Threads of the body add to it without a lock, which an interrupt of the body could leave locked.
    """

    __slots__ = ("_added", "_count", "_limits", "_lock", "_sizes", "_unsaved", "is_closed", "last_before")

    def __init__(self, limits: Mapping[OutputKind, int]) -> None:
        self._limits = limits
        self._sizes = dict.fromkeys(limits, 0)
        self._added: deque[tuple[OutputKind, Any, float]] = deque()
        self._unsaved: list[Chunk] = []
        self._count = 0
        self._lock = Lock()
        self.is_closed = False  # the body has ended
        self.last_before: int | None = None  # the last sequence of earlier runs, once it is known

    @property
    def has_unsaved(self) -> bool:
        """Whether something has to be saved."""
        return bool(self._added or self._unsaved)

    def add(self, kind: OutputKind, data: Any) -> None:
        """Add a JSON value. Beyond the limit, the beginning of a text and a note are all that is added."""
        limit, size = self._limits[kind], self._sizes[kind]
        if self.is_closed or size > limit:
            return
        text = (data if isinstance(data, str) else dumps(data)).encode()
        self._sizes[kind] = size + len(text) + ROW_BYTES
        if self._sizes[kind] > limit:
            if isinstance(data, str) and (head := text[: max(0, limit - size - ROW_BYTES)].decode(errors="ignore")):
                self._added.append((kind, head, time.monotonic()))
            data = CUT.format(limit=limit)
        self._added.append((kind, data, time.monotonic()))

    def unsaved(self) -> list[Chunk]:
        """Return what is not marked as saved."""
        with self._lock:
            while self._added:
                self._count += 1
                self._unsaved.append(Chunk(self._count, *self._added.popleft()))
            return self._unsaved[:]

    def mark_saved(self, number: int) -> None:
        """Forget the chunks up to this number: their transaction has committed."""
        with self._lock:
            self._unsaved = [chunk for chunk in self._unsaved if chunk.number > number]
