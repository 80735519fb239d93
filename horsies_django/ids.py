"""UUIDv7 for task ids: made by the sender, sorted by time, so that inserts stay local in the index."""

from __future__ import annotations

import secrets
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """Return a UUIDv7 (RFC 9562, method 3) greater than every one this process has made before.

    48 bits of milliseconds, then 12 bits of the fraction of that millisecond. Ids made faster than that clock ticks
    count on from the last one, so tasks that share an ``enqueued_at`` still run in the order they were sent.
    """
    global _last
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    stamp = milliseconds << 12 | (rest << 12) // 1_000_000
    with _lock:
        _last = stamp = max(stamp, _last + 1)
    return UUID(int=(stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | secrets.randbits(62))
