"""Patience: schedules that could not be sent for now are let alone for a while, each time twice as long."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

#: Seconds for which one is let alone first, and at most.
FIRST: Final = 0.1
LONGEST: Final = 60.0


@dataclass(slots=True)
class RetryLater:
    """What this process lets alone. Another may try meanwhile, for nothing of it is in the database."""

    _until: dict[Hashable, tuple[float, float]] = field(default_factory=dict)

    def put_off(self, key: Hashable) -> bool:
        """Let one alone; return whether it is the first time."""
        _, before = self._until.get(key, (0.0, 0.0))
        delay = min(before * 2 or FIRST, LONGEST)
        self._until[key] = time.monotonic() + delay, delay
        return not before

    def forget(self, key: Hashable) -> None:
        """It has gone well."""
        self._until.pop(key, None)

    def waiting(self) -> list[Any]:
        """Return those that are let alone now."""
        now = time.monotonic()
        for key in [key for key, (until, _) in self._until.items() if until < now - 2 * LONGEST]:
            self.forget(key)  # somebody else has sent it
        return [key for key, (until, _) in self._until.items() if until > now]

    def seconds(self) -> float | None:
        """Return the seconds until the next one may be tried again; None if none is let alone."""
        now = time.monotonic()
        return min((until - now for until, _ in self._until.values() if until > now), default=None)
