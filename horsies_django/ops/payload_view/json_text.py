"""Indented, masked JSON, produced in chunks so that large and deep values can be cut off early."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...core.mask import Mask

_INDENT: Final = "  "

#: Encodes a scalar. json.dumps() would create an encoder for each.
_encode: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode


@dataclass(slots=True)
class _Level:
    """A list or dict that is being written."""

    members: Iterator[tuple[str | None, Any]]
    closing: str
    is_empty: bool = True


def chunks(value: Any, mask: Mask) -> Iterator[str]:
    """Yield the text of ``value`` in chunks, with the values of sensitive keys masked.

    Does not recurse, because stored JSON may be deeper than Python's stack.
    """
    levels: list[_Level] = []
    yield from _open(value, mask, levels)
    while levels:
        level = levels[-1]
        if (entry := next(level.members, None)) is None:
            levels.pop()
            yield level.closing if level.is_empty else f"\n{_INDENT * len(levels)}{level.closing}"
            continue
        name, member = entry
        yield f"{'' if level.is_empty else ','}\n{_INDENT * len(levels)}"
        level.is_empty = False
        if name is not None:
            yield f"{_encode(name)}: "
        yield from _open(member, mask, levels)


def head(value: Any, mask: Mask, limit: int) -> tuple[str, bool]:
    """Return the first ``limit`` characters of the text of ``value``, and whether that is the whole text."""
    parts: list[str] = []
    length = 0
    for piece in chunks(value, mask):
        parts.append(piece[: limit - length + 1])
        length += len(parts[-1])
        if length > limit:
            return "".join(parts)[:limit], False
    return "".join(parts), True


def _open(value: Any, mask: Mask, levels: list[_Level]) -> Iterator[str]:
    """Yield a scalar, or the opening bracket of a container after pushing it on ``levels``."""
    if isinstance(value, dict):
        levels.append(_Level(((key, mask.apply(key, member)) for key, member in value.items()), "}"))
        yield "{"
    elif isinstance(value, list):
        levels.append(_Level(((None, member) for member in value), "]"))
        yield "["
    else:
        yield _encode(value)
