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
    """Return a column's time in UTC. Without USE_TZ, columns are naive and in UTC."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@overload
def stored(moment: datetime) -> datetime: ...
@overload
def stored(moment: None) -> None: ...
def stored(moment: datetime | None) -> datetime | None:
    """Return a time in the form that a column stores."""
    if moment is None or settings.USE_TZ:
        return moment
    return moment.astimezone(UTC).replace(tzinfo=None)
