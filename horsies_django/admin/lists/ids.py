"""Read ids, and parts of ids, that are typed into a search field."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final
from uuid import UUID

from ...ops.keyset.scan import KeyRange

#: The fewest digits that count as the beginning or the end of an id.
MIN_DIGITS: Final = 8

_DIGITS: Final = 32
_PREFIX: Final = re.compile(r"[0-9a-f]{8}[0-9a-f-]*", re.IGNORECASE)
_SUFFIX: Final = re.compile(r"…([0-9a-f-]+)", re.IGNORECASE)


def is_id(text: str) -> bool:
    """Return whether the text is an id."""
    with suppress(ValueError):
        return bool(UUID(text.strip()))
    return False


def id_range(text: str) -> KeyRange | None:
    """Return the range of the ids that begin like this, which an index finds; None if it begins no id."""
    if is_id(text):
        return KeyRange(UUID(text.strip()), UUID(text.strip()))
    digits = text.replace("-", "")
    if not _PREFIX.fullmatch(text) or len(digits) >= _DIGITS:
        return None
    low = int(digits, 16) << 4 * (_DIGITS - len(digits))
    return KeyRange(UUID(int=low), UUID(int=low | (1 << 4 * (_DIGITS - len(digits))) - 1))


def id_end(text: str) -> str | None:
    """Return the digits of an end of an id as lists show it, after an ellipsis; None if it is none."""
    match = _SUFFIX.fullmatch(text)
    digits = match[1].replace("-", "").lower() if match else ""
    return digits if MIN_DIGITS <= len(digits) <= _DIGITS else None


def looks_like_id(text: str) -> bool:
    """Return whether a search without a qualifier is an id or a part of one.

    The beginning of an id is taken for one if it begins with 0, as a UUIDv7 of this century does: other words of the
    digits 0-9 and a-f may be parts of names.
    """
    text = text.strip()
    return is_id(text) or id_end(text) is not None or (text.startswith("0") and id_range(text) is not None)
