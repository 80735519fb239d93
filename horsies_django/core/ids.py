"""UUIDv7 ids for tasks. The sender makes them; they sort by time, so inserts stay local in the index."""

from __future__ import annotations

import secrets
import struct
import threading
import time
from typing import Final
from uuid import UUID, SafeUUID

_lock = threading.Lock()
_last = 0

_UNKNOWN: Final = SafeUUID.unknown


def uuid7() -> UUID:
    """Return a UUIDv7 (RFC 9562, method 3) greater than any that this process has made before.

    48 bits of milliseconds, then 12 bits of the fraction of that millisecond. Ids made faster than the clock ticks
    increment the last one, so tasks with the same ``enqueued_at`` still run in the order of sending.
    """
    return _id(_reserve_timestamps(1), int.from_bytes(secrets.token_bytes(8)) >> 2)


def uuid7s(count: int) -> list[UUID]:
    """Return ``count`` UUIDv7 in ascending order, with one read of the clock and of the random source."""
    first = _reserve_timestamps(count)
    tails = struct.unpack(f"{count}Q", secrets.token_bytes(8 * count))
    return [_id(stamp, tail >> 2) for stamp, tail in enumerate(tails, first)]


def parse_uuid(value: object, what: str = "id") -> UUID:
    """Return an id given as a UUID or its text. Raises ValueError; ``what`` names the id in the message."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"{what} is {value!r}; allowed: a UUID, or its text.") from None


def _reserve_timestamps(count: int) -> int:
    """Reserve the next ``count`` timestamps for the caller and return the first."""
    global _last
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    stamp = milliseconds << 12 | (rest << 12) // 1_000_000
    with _lock:
        first = max(stamp, _last + 1)
        _last = first + count - 1
    return first


def _id(stamp: int, tail: int) -> UUID:
    # As UUID(int=…) does, without its checks: they take longer than the rest.
    made = object.__new__(UUID)
    object.__setattr__(made, "int", (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | tail)
    object.__setattr__(made, "is_safe", _UNKNOWN)
    return made
