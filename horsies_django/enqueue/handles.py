"""``TaskHandles``: the handles of many tasks, in little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar, overload
from uuid import UUID

from .handle import TaskHandle

T = TypeVar("T")

#: The bytes of an id.
_SIZE: Final = 16


def packed(ids: Iterable[UUID]) -> bytes:
    """Return the bytes of ids, one after the other."""
    return b"".join([key.int.to_bytes(_SIZE) for key in ids])


class TaskHandles(Sequence[TaskHandle[T]]):
    """The handles of many tasks, in the order of their calls. Equal to any sequence of the same handles.

    It keeps 17 bytes for each task: its id, and whether the send was replayed. Each access makes a new handle, so keep
    the handle of which you ask the result twice. A slice is a list.
    """

    __slots__ = ("_backend", "_ids", "_replayed")

    def __init__(self, backend: str, ids: bytes | bytearray, replayed: bytes | bytearray) -> None:
        self._backend = backend
        self._ids = ids
        self._replayed = replayed

    @classmethod
    def of(cls, backend: str, handles: Iterable[TaskHandle[T]]) -> TaskHandles[T]:
        """Return these handles, which are all of one backend."""
        ids, replayed = bytearray(), bytearray()
        for handle in handles:
            ids += handle.id.bytes
            replayed.append(handle.replayed)
        return cls(backend, ids, replayed)

    def __len__(self) -> int:
        return len(self._replayed)

    @overload
    def __getitem__(self, index: int) -> TaskHandle[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskHandle[T]]: ...
    def __getitem__(self, index: int | slice) -> TaskHandle[T] | list[TaskHandle[T]]:
        places = range(len(self))[index]
        return self._handle(places) if isinstance(places, int) else [self._handle(place) for place in places]

    def __iter__(self) -> Iterator[TaskHandle[T]]:
        return map(self._handle, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    def __add__(self, other: Sequence[TaskHandle[T]]) -> list[TaskHandle[T]]:
        return [*self, *other]

    def __radd__(self, other: Sequence[TaskHandle[T]]) -> list[TaskHandle[T]]:
        return [*other, *self]

    __hash__ = None  # type: ignore[assignment]  # as a list, which it may equal

    def __repr__(self) -> str:
        return f"<TaskHandles: {len(self)}>"

    def _handle(self, place: int) -> TaskHandle[T]:
        key = UUID(bytes=bytes(self._ids[place * _SIZE : (place + 1) * _SIZE]))
        return TaskHandle(key, backend=self._backend, replayed=bool(self._replayed[place]))
