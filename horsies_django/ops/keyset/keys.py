"""Keys that grow with time, as the ids of tasks and workflows and the numbers of beats do: where a walk is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.db.models import Model, UUIDField

#: Ids that grow with time: UUIDv7 of tasks and workflows, numbers of beats.
Key: TypeAlias = Any

#: By how much the clocks that made the ids may differ from the database's.
SKEW: Final = timedelta(minutes=1)

#: The last millisecond of the year 9998, which no zone carries out of the calendar.
_LAST_MS: Final = int(datetime(9998, 12, 31, tzinfo=UTC).timestamp() * 1_000)


def id_at(moment: datetime) -> UUID:
    """Return the first id that can have been made at that time."""
    return UUID(int=max(0, int(moment.timestamp() * 1_000)) << 80)


def created_at(key: Key) -> datetime:
    """Return when an id was made, by its maker's clock."""
    return datetime.fromtimestamp(min(key.int >> 80, _LAST_MS) / 1_000, UTC)


def parse_key(model: type[Model], text: str | None) -> Key | None:
    """Read a cursor from an address; None for what is none."""
    kind, largest = _key_type(model)
    try:
        key = kind(text or "")
    except ValueError:
        return None
    return key if kind is UUID or 0 <= key <= largest else None


def lowest_key(model: type[Model]) -> Key:
    """Return what comes before every id."""
    return UUID(int=0) if _key_type(model)[0] is UUID else 0


def _key_type(model: type[Model]) -> tuple[type[Any], int]:
    return (UUID, (1 << 128) - 1) if isinstance(model._meta.pk, UUIDField) else (int, (1 << 63) - 1)


def offset_key(key: Key, step: int) -> Key:
    """Return the key so many steps on, or the last that there can be."""
    if isinstance(key, UUID):
        return UUID(int=min(max(key.int + step, 0), (1 << 128) - 1))
    return min(max(key + step, 0), (1 << 63) - 1)
