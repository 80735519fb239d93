"""The outbox: bodies' ends on their way to the table."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from .execution_result import Outcome

#: Characters of results that one tick stores together; PostgreSQL takes 256 MB in one JSON value.
LARGEST_BATCH: Final = 16_000_000

#: Seconds between two looks whether a row is still locked.
EVERY: Final = 1.0

#: Seconds for which who changes something of a workflow has its row locked, as a rule; and between two tries at most,
#: where it is locked for longer, as by somebody's own transaction.
_MOMENT: Final = 0.002
_LONGEST_MOMENT: Final = 0.05


class Outbox:
    """Outcomes in the order in which they came. Times are monotonic, in seconds.

    A body that has saved its state may have left its row locked: by a thread of its own that goes on, or by a query
    that the server has not given up yet. Such an outcome is *late* until the row is free, for nobody here may wait.
    """

    def __init__(self) -> None:
        self._ready: list[Outcome] = []
        self._late: list[Outcome] = []
        self._blocked: list[Outcome] = []
        self.look_at = float("inf")
        self.unblock_at = float("inf")
        self._moment = _MOMENT

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._ready or self._late or self._blocked)

    @property
    def next(self) -> float:
        """When to do something about what waits."""
        return min(self.look_at, self.unblock_at)

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
        return [*self._ready, *self._late, *self._blocked]

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

    def take(self, stored: Sequence[Outcome]) -> None:
        """Take these out: they are stored."""
        keys = set(map(id, stored))
        self._ready = [outcome for outcome in self._ready if id(outcome) not in keys]

    def block(self, outcomes: Sequence[Outcome]) -> None:
        """Try these again in a moment, and in a longer one each time: somebody changes something of their workflows."""
        if outcomes:
            self.take(outcomes)
            self._blocked += outcomes
            self.unblock_at = min(self.unblock_at, time.monotonic() + self._moment)
            self._moment = min(1.5 * self._moment, _LONGEST_MOMENT)
        elif not self._blocked:
            self._moment = _MOMENT

    def unblock(self) -> None:
        """Try again what was blocked."""
        self._ready += self._blocked
        self._blocked = []
        self.unblock_at = float("inf")
