"""Convert times between columns and Python, and read the project's time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, overload

from django.conf import settings

#: The first and the last time that a call, a workflow or a schedule may use. Columns take a year more on each side.
EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9998, 1, 1, tzinfo=UTC)
DATES_ALLOWED: Final = "a time from 1900 to 9997 (UTC)"


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


def is_in_range(moment: datetime) -> bool:
    """Whether a call, a workflow or a schedule may use this aware time."""
    try:
        return EARLIEST <= moment.astimezone(UTC) < LATEST
    except OverflowError:
        return False
