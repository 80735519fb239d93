"""Keys that grow with time, which mark the position of a scan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.db.models import Model, UUIDField

#: A primary key that grows with time: a UUIDv7 of a task or workflow, or the number of a heartbeat.
Key: TypeAlias = Any

#: How far the clocks that made the ids may differ from the database's.
SKEW: Final = timedelta(minutes=1)

#: The last millisecond of the year 9998: no time zone moves it out of the range of datetime.
_LAST_MS: Final = int(datetime(9998, 12, 31, tzinfo=UTC).timestamp() * 1_000)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The lowest and the highest id that can match. None: no bound."""

    low: Key | None = None
    high: Key | None = None

    def __and__(self, other: KeyRange) -> KeyRange:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return KeyRange(max(lows, default=None), min(highs, default=None))


def id_at(moment: datetime) -> UUID:
    """Return the lowest UUIDv7 of that time."""
    return UUID(int=max(0, int(moment.timestamp() * 1_000)) << 80)


def created_at(key: Key) -> datetime:
    """Return the time in a UUIDv7, by the clock of the process that made it."""
    return datetime.fromtimestamp(min(key.int >> 80, _LAST_MS) / 1_000, UTC)


def is_id(text: str) -> bool:
    """Return whether the text is an id."""
    with suppress(ValueError):
        return bool(UUID(text.strip()))
    return False


def parse_key(model: type[Model], text: str | None) -> Key | None:
    """Parse a primary key from a URL; return None if it is not valid."""
    kind, largest = _key_type(model)
    try:
        key = kind(text or "")
    except ValueError:
        return None
    return key if kind is UUID or 0 <= key <= largest else None


def _key_type(model: type[Model]) -> tuple[type[Any], int]:
    return (UUID, (1 << 128) - 1) if isinstance(model._meta.pk, UUIDField) else (int, (1 << 63) - 1)


def offset_key(key: Key, step: int) -> Key:
    """Return the key moved by ``step``, within the range of its type."""
    if isinstance(key, UUID):
        return UUID(int=min(max(key.int + step, 0), (1 << 128) - 1))
    return min(max(key + step, 0), (1 << 63) - 1)
