"""The option ``retention`` in rows: how long an ended task is kept, by state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from .option_parsers import INHERIT, LONGEST_DURATION, RETENTION_STATES, Retention, parse_retention

#: The value for tasks that are kept for ever. NULL leaves the decision to the queue and the backend.
LONGEST: Final = timedelta(seconds=LONGEST_DURATION)

_COMPLETED: Final = RETENTION_STATES[0]


def stored_retention(value: object) -> dict[str, Any]:
    """Return the columns of a row for the option ``retention``.

    Completed tasks have a column of their own: thousands of them end each second. Raises ValueError.
    """
    kept = {state: finite(duration) for state, duration in parse_retention(value).items()}
    completed = kept.pop(_COMPLETED, None)
    by_state = {state: duration.total_seconds() for state, duration in kept.items()} or None
    return {"retention": completed, "retention_by_state": by_state}


def read_retention(stored: timedelta | None, by_state: object) -> Retention:
    """Return the option that :func:`stored_retention` has stored, without invalid values."""
    kept = retention_of(stored, by_state)
    durations = {state: duration if duration < LONGEST else None for state, duration in kept.items()}
    return durations.get(_COMPLETED, INHERIT) if durations.keys() <= {_COMPLETED} else durations


def retention_of(stored: timedelta | None, by_state: object) -> dict[str, timedelta]:
    """Return the retention in a row by state; the longest value means for ever."""
    kept = {} if stored is None else {_COMPLETED: stored}
    stored_seconds = by_state if isinstance(by_state, Mapping) else {}
    for state in RETENTION_STATES[1:]:
        seconds = stored_seconds.get(state)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST_DURATION:
            kept[state] = timedelta(seconds=seconds)
    return kept


def finite(kept: timedelta | None) -> timedelta:
    """Return a duration that a row can store; for ever becomes the longest one."""
    return LONGEST if kept is None else min(kept, LONGEST)
