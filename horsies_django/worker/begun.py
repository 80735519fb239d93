"""Which bodies have begun, in memory that a runner shares with its supervisor.

A task is RUNNING in the table a moment before its body begins. When a runner has died, its supervisor knows from here
which of its tasks have been touched by user code at all; the others go back as if they had never been claimed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Final, TypeAlias

from ..models.claims import Held

#: Whether the body of a task, under a claim, may have begun.
HasBegun: TypeAlias = Callable[[Held], bool]

#: Bytes of a place: a task's id and the number of the claim.
_PLACE: Final = 24

#: Places there are; far more than a runner ever has in hand.
_PLACES: Final = 10_000

#: Bytes before the first place. The first of them is 1 once a body has begun for which there was none.
_HEAD: Final = 8


def new_memory() -> int:
    """Return a descriptor of pages to share. Raises OSError."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("horsies-begun")
        os.ftruncate(descriptor, Begun.SIZE)
        return descriptor
    with TemporaryFile() as file:
        file.write(bytes(Begun.SIZE))
        file.flush()
        return os.dup(file.fileno())


class Begun:
    """The shared pages. A place that is given back keeps what it says, for that stays true."""

    SIZE: Final = _HEAD + _PLACE * _PLACES

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)
        self._free: list[Place] = []
        self._taken = 0

    def place(self) -> Place:
        """Return a place to mark."""
        if self._free:
            return self._free.pop()
        self._taken = min(self._taken + 1, _PLACES)
        return Place(self._memory, self._taken)

    def give_back(self, place: Place | None) -> None:
        """Let another body have the place."""
        if place is not None and place.number < _PLACES:
            self._free.append(place)

    def read(self) -> HasBegun:
        """Return what there is to know, once the runner is dead."""
        if self._memory[0]:
            return lambda held: True
        marks = {self._memory[start : start + _PLACE] for start in range(_HEAD, self.SIZE, _PLACE)}
        return lambda held: _mark(held) in marks

    def close(self) -> None:
        """Let the memory go."""
        self._memory.close()


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where one body notes that it begins; the last is for all for whom there is no other."""

    memory: mmap.mmap
    number: int

    def mark(self, held: Held) -> None:
        """Note that the body of this claim begins."""
        if self.number == _PLACES:
            self.memory[0] = 1
        else:
            start = _HEAD + _PLACE * self.number
            self.memory[start : start + _PLACE] = _mark(held)


def _mark(held: Held) -> bytes:
    return held.task_id.bytes + held.claim.to_bytes(8, "big")
