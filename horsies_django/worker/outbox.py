"""The outbox: bodies' ends on their way to the table."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final
from uuid import UUID

from .outcome import Outcome

#: Characters of results that one tick stores together; PostgreSQL takes 256 MB in one JSON value.
LARGEST_BATCH: Final = 16_000_000

#: Seconds between two looks whether a row is still locked.
EVERY: Final = 1.0


class Outbox:
    """Outcomes in the order in which they came. Times are monotonic, in seconds.

    A body that has saved its state may have left its row locked: by a thread of its own that goes on, or by a query
    that the server has not given up yet. Such an outcome is *late* until the row is free, for nobody here may wait.
    """

    def __init__(self) -> None:
        self._ready: list[Outcome] = []
        self._late: list[Outcome] = []
        self.look_at = float("inf")

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._ready or self._late)

    @property
    def is_ready(self) -> bool:
        """Whether there is something to store."""
        return bool(self._ready)

    @property
    def late(self) -> Collection[Outcome]:
        """What waits for its row."""
        return self._late

    @property
    def all(self) -> Collection[Outcome]:
        """Everything that is in it."""
        return [*self._ready, *self._late]

    def put(self, outcome: Outcome) -> None:
        """A body has ended."""
        if outcome.run.has_saved and not outcome.is_stored:
            self._late.append(outcome)
            self.look_at = 0.0
        else:
            self._ready.append(outcome)

    def admit(self, locked: Collection[UUID]) -> None:
        """Of the late ones, let those in whose rows nobody has locked."""
        self._ready += [outcome for outcome in self._late if outcome.run.task_id not in locked]
        self._late = [outcome for outcome in self._late if outcome.run.task_id in locked]
        self.look_at = time.monotonic() + EVERY if self._late else float("inf")

    def batch(self) -> list[Outcome]:
        """What one tick is to store: all that is ready, unless the results are very large together."""
        batch: list[Outcome] = []
        size = 0
        for outcome in self._ready:
            size += len(outcome.ended.result)
            if batch and size > LARGEST_BATCH:
                break
            batch.append(outcome)
        return batch

    def take(self, count: int) -> list[Outcome]:
        """Take the first ``count`` out: they are stored."""
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken
