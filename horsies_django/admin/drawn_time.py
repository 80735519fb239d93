"""The moment up to which drawings show what has not ended, so that they change now and then instead of each second."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import ceil, floor, log2
from typing import Final, overload

#: A drawing goes beyond the present by at most this part of its length, or by a second.
_PART: Final = 1 / 20


@overload
def drawn_until(began: datetime, now: datetime) -> datetime: ...
@overload
def drawn_until(began: datetime | None, now: datetime | None) -> datetime | None: ...
def drawn_until(began: datetime | None, now: datetime | None) -> datetime | None:
    """Return the end of a drawing that began at a moment: ``now`` or a little later, the same for a while.

    The texts beside a drawing are exact; see :func:`.ages.counted`.
    """
    if began is None or now is None or now <= began:
        return now
    elapsed = (now - began).total_seconds()
    step: float = 2.0 ** floor(log2(max(elapsed * _PART, 1.0)))
    return began + timedelta(seconds=ceil(elapsed / step) * step)
