"""The policy of a queue: each column of its row, or the setting if that is empty, or the default."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Self

from .limits import RATE_ALLOWED, Rate
from .option_parsers import (
    LONGEST_DURATION,
    MAX_CONCURRENCY,
    PRIORITY,
    RETENTION_STATES,
    WEIGHT,
    OptionParser,
    parse_duration,
)
from .options import QueueOptions

logger = logging.getLogger("horsies_django.worker")

#: The value of a row without a limit although the settings have one.
NO_RATE: Final = "none"
NO_LIMIT: Final = 1_000_000

#: The value of a row whose tasks are kept for ever.
KEEP_FOREVER: Final = timedelta(seconds=LONGEST_DURATION)

_KEPT: Final = 'seconds, a timedelta, a text like "90s", "12h", "7d", 0, "forever"'


def _rate(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip().lower() == NO_RATE:
        return NO_RATE
    Rate.parse(value)
    return str(value).strip()


def _kept(value: object) -> timedelta | None:
    if isinstance(value, str) and value.strip().lower() == "forever":
        return KEEP_FOREVER
    kept = parse_duration(value)
    return None if kept is None else min(kept, KEEP_FOREVER)


def _kept_by_state(value: object) -> dict[str, float] | None:
    if not isinstance(value, Mapping) or not value.keys() <= set(RETENTION_STATES[1:]):
        raise ValueError
    return {state: kept.total_seconds() for state, kept in _by_state(value).items()} or None


def _by_state(durations: Mapping[Any, object]) -> dict[str, timedelta]:
    """Parse a dict of durations. Raises ValueError, which names the key, its value and what is allowed."""
    by_state = {}
    for state, value in durations.items():
        if state not in RETENTION_STATES:
            allowed = ", ".join(RETENTION_STATES)
            raise ValueError(f"retention has the key {state!r}, with {value!r}; allowed: {allowed}.")
        try:
            kept = _kept(value)
        except ValueError:
            raise ValueError(f"retention[{state!r}] is {value!r}; allowed: {_KEPT} or None.") from None
        by_state[str(state)] = KEEP_FOREVER if kept is None else kept
    return by_state


def _or_empty(rule: OptionParser) -> OptionParser:
    words = rule.allowed.partition(", or None")[0]
    return OptionParser(
        f"{words}, or None (as the settings say)", lambda value: None if value is None else rule.parse(value)
    )


#: The columns of a policy, with their parsers. None means that the settings apply.
COLUMNS: Final[Mapping[str, OptionParser]] = {
    "max_concurrency": _or_empty(MAX_CONCURRENCY),
    "rate_limit": _or_empty(OptionParser(f"{RATE_ALLOWED}; {NO_RATE!r}", _rate)),
    "priority": _or_empty(PRIORITY),
    "weight": _or_empty(WEIGHT),
    "retention": _or_empty(OptionParser(_KEPT, _kept)),
    "retention_by_state": _or_empty(
        OptionParser(f"a dict by {', '.join(RETENTION_STATES[1:])} of {_KEPT}", _kept_by_state)
    ),
}

#: The columns that workers use. The retention of other ends than success is read by the statement that ends a task.
POLICY_COLUMNS: Final = tuple(name for name in COLUMNS if name != "retention_by_state")


def parse_policy(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the parsed values of columns. Raises ValueError, which names the column, the value and what is allowed.

    A ``retention`` that is a dict by state, or None, sets both of its columns.
    """
    if isinstance(retention := values.get("retention", ""), Mapping | None):
        by_state = _by_state(retention or {})
        completed = by_state.pop(RETENTION_STATES[0], None)
        values = {"retention_by_state": by_state} | dict(values) | {"retention": completed}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in COLUMNS:
            raise ValueError(f"A queue has no {name!r} to set; allowed: {', '.join(COLUMNS)}.")
        try:
            parsed[name] = COLUMNS[name].parse(value)
        except ValueError:
            raise ValueError(f"{name} is {value!r}; allowed: {COLUMNS[name].allowed}.") from None
    return parsed


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The policy of a queue. Only the row sets ``retention`` (of successes) and ``retention_by_state``, in seconds."""

    priority: int = 0
    weight: int = 1
    max_concurrency: int | None = None
    rate: Rate | None = None
    retention: timedelta | None = None
    retention_by_state: Mapping[str, float] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the queue has a limit."""
        return self.max_concurrency is not None or self.rate is not None

    @classmethod
    def of(cls, options: QueueOptions | None, row: Mapping[str, Any] | None = None) -> Self:
        """Return the policy from a queue's settings and its row, either of which may be missing."""
        rules = cls() if options is None else cls._of_settings(options)
        if row is None:
            return rules
        columns = {name: value for name in COLUMNS if (value := _column_value(name, row.get(name))) is not None}
        if "max_concurrency" in columns:
            columns["max_concurrency"] = columns["max_concurrency"] if columns["max_concurrency"] < NO_LIMIT else None
        if (text := columns.pop("rate_limit", None)) is not None:
            columns["rate"] = None if text == NO_RATE else Rate.parse(text)
        return replace(rules, **columns)

    @classmethod
    def _of_settings(cls, options: QueueOptions) -> Self:
        max_concurrency = options.max_concurrency
        max_concurrency = max_concurrency if max_concurrency is not None and max_concurrency < NO_LIMIT else None
        return cls(options.priority, options.weight, max_concurrency, options.rate_limit)


def _column_value(name: str, value: Any) -> Any:
    """Return the parsed value of a column; None for an invalid one, as if it were empty."""
    try:
        return COLUMNS[name].parse(value)
    except ValueError:
        _warn_once(name, repr(value))
        return None


@lru_cache(maxsize=256)
def _warn_once(name: str, value: str) -> None:
    """Log an invalid value once: the row is read several times a second."""
    logger.warning("invalid queue setting ignored %s=%s; allowed: %s", name, value, COLUMNS[name].allowed)
