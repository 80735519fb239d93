"""Search terms for arguments and metadata. Each row is masked first and then compared in Python.

The searched text is not part of the SQL: the database would search masked values too, and its response time would
reveal whether they contain the text. For the same reason each term reads each row, whatever the others found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import QuerySet

from ...core.mask import HideAll, Mask, mask_of
from ...core.serialization import TAG
from ...ops.keyset.keys import Key
from ...ops.keyset.scan import PAGE
from ...ops.payload_view.contents import PARTS, decode
from ...ops.payload_view.excerpt import with_short_arguments

#: Maximum stored size in bytes of a value that is searched.
MAX_SEARCHED_BYTES: Final = 32_000


@dataclass(frozen=True, slots=True)
class Payload:
    """The decoded values of one call, and their mask."""

    mask: Mask
    args: Any = None
    kwargs: Any = None
    metadata: Any = None


@dataclass(slots=True)
class PathTerm:
    """Matches arguments or metadata that have a value at a path of keys, names of parameters and positions.

    An element of a list matches for the list. Without quotes, the value may be a number, true, false or null.
    ``has_hidden`` is true once a mask has hidden a value that the term names.
    """

    name: str
    part: str
    path: tuple[str, ...]
    value: str
    is_quoted: bool = False
    has_hidden: bool = False
    _number: int | float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for kind in (float, int):  # an int compares exactly
            with suppress(ValueError):
                self._number = kind(self.value)

    def matches(self, payload: Payload) -> bool:
        """Return whether a visible value at the path is the one that is searched for."""
        if isinstance(payload.mask, HideAll):  # the names may be sensitive too
            self.has_hidden = True
            return False
        hits = [self._is_wanted(value) for value in self._values(payload)]
        return any(hits)

    def _values(self, payload: Payload) -> Iterator[Any]:
        mask, first, rest = payload.mask, self.path[0], self.path[1:]
        if self.part == "metadata":
            for value in self._visible(mask, "metadata", payload.metadata):
                yield from self._at(value, self.path, mask)
            return
        if isinstance(payload.kwargs, dict):
            yield from self._of_dict(payload.kwargs, self.path, mask)
        if isinstance(payload.args, list):
            index = int(first) if _is_index(first) else mask.position_of(first)
            if index is not None and index < len(payload.args):
                for value in self._visible(mask, mask.name_at(index), payload.args[index]):
                    yield from self._at(value, rest, mask)

    def _at(self, value: Any, path: tuple[str, ...], mask: Mask) -> Iterator[Any]:
        """Yield the visible values at a path below a value."""
        if isinstance(value, dict):
            yield from self._of_dict(value, path, mask)
        elif not path:
            yield value
        elif isinstance(value, list):
            if _is_index(path[0]) and int(path[0]) < len(value):
                yield from self._at(value[int(path[0])], path[1:], mask)
            for member in value:
                if isinstance(member, dict):
                    yield from self._of_dict(member, path, mask)

    def _of_dict(self, value: dict[str, Any], path: tuple[str, ...], mask: Mask) -> Iterator[Any]:
        if TAG in value and "value" in value:  # a rich value, such as a dataclass
            for inner in self._visible(mask, "value", value["value"]):
                yield from self._at(inner, path, mask)
        if path and path[0] in value:
            for member in self._visible(mask, path[0], value[path[0]]):
                yield from self._at(member, path[1:], mask)

    def _visible(self, mask: Mask, name: str, value: Any) -> Iterator[Any]:
        """Yield a value unless the mask hides it."""
        if mask.apply(name, value) is value:
            yield value
        else:
            self.has_hidden = True

    def _is_wanted(self, value: Any) -> bool:
        members = value if isinstance(value, list) else [value]
        return any(self._is_equal(member) for member in members)

    def _is_equal(self, value: Any) -> bool:
        if isinstance(value, str):
            return value.casefold() == self.value.casefold()
        if self.is_quoted or isinstance(value, dict | list):
            return False
        if value is None or isinstance(value, bool):
            return json.dumps(value) == self.value.casefold()
        return bool(value == self._number)


class PayloadFilter:
    """A row filter of tasks: finds those whose payload matches all terms."""

    def __init__(self, terms: Sequence[PathTerm]) -> None:
        self._terms = terms
        self._parts = ["args", "kwargs"]
        if any(term.part == "metadata" for term in terms):
            self._parts.append("metadata")

    def __call__(self, tasks: QuerySet[Any]) -> tuple[list[Key], int]:
        """Return the ids of the matching tasks, and the number of characters read."""
        columns = ("pk", "task_name", *(PARTS[part] for part in self._parts))
        rows = with_short_arguments(tasks, MAX_SEARCHED_BYTES, self._parts).values_list(*columns)
        masks: dict[str, Mask] = {}
        keys, size = list[Key](), 0
        for key, name, *texts in rows.iterator(chunk_size=20 * PAGE):
            if name not in masks:
                masks[name] = mask_of(name)
            size += sum(len(text or "") for text in texts)
            values = dict(zip(self._parts, map(decode, texts), strict=True))
            if matches_all(self._terms, [Payload(masks[name], **values)]):
                keys.append(key)
        return keys, size


def matches_all(terms: Sequence[PathTerm], payloads: Sequence[Payload]) -> bool:
    """Return whether each term matches some payload. Compares all with all, so that the time reveals nothing."""
    hits = [[term.matches(payload) for payload in payloads] for term in terms]
    return all(map(any, hits))


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
