"""Convert times between columns and Python, and read the project's time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload

from django.conf import settings


def project_timezone() -> str:
    """Return the project's time zone, the default of a schedule."""
    return settings.TIME_ZONE or "UTC"


@overload
def aware(moment: datetime) -> datetime: ...
@overload
def aware(moment: None) -> None: ...
def aware(moment: datetime | None) -> datetime | None:
    """Return a column's time in UTC: that of a connection with a ``TIME_ZONE`` is in another zone."""
    return None if moment is None else moment.astimezone(UTC)


def parse_utc(text: str) -> datetime:
    """Parse a time that the database returned as text. SQLite's has no zone and is in UTC."""
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
