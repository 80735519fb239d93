"""The outbox: bodies' ends on their way to the table."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from .execution_result import ExecutionResult

#: Characters of results that one tick stores together; PostgreSQL takes 256 MB in one JSON value.
MAX_BATCH_SIZE: Final = 16_000_000

#: Seconds between two looks whether a row is still locked.
LOCK_CHECK_INTERVAL: Final = 1.0

#: Seconds for which who changes something of a workflow has its row locked, as a rule; and between two tries at most,
#: where it is locked for longer, as by somebody's own transaction.
_FIRST_PAUSE: Final = 0.002
_MAX_PAUSE: Final = 0.05


class ResultBuffer:
    """Outcomes in the order in which they came. Times are monotonic, in seconds.

    A body that has saved its state may have left its row locked: by a thread of its own that goes on, or by a query
    that the server has not given up yet. Such an outcome is *late* until the row is free, for nobody here may wait.
    """

    def __init__(self) -> None:
        self._ready: list[ExecutionResult] = []
        self._maybe_locked: list[ExecutionResult] = []
        self._postponed: list[ExecutionResult] = []
        self.check_locks_at = float("inf")
        self.retry_at = float("inf")
        self._pause = _FIRST_PAUSE

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self._ready or self._maybe_locked or self._postponed)

    @property
    def next_at(self) -> float:
        """When to do something about what waits."""
        return min(self.check_locks_at, self.retry_at)

    @property
    def is_ready(self) -> bool:
        """Whether there is something to store."""
        return bool(self._ready)

    @property
    def maybe_locked(self) -> Collection[ExecutionResult]:
        """What waits for its row."""
        return self._maybe_locked

    @property
    def all(self) -> Collection[ExecutionResult]:
        """Everything that is in it."""
        return [*self._ready, *self._maybe_locked, *self._postponed]

    def put(self, outcome: ExecutionResult) -> None:
        """A body has ended."""
        if outcome.execution.has_saved and not outcome.is_stored:
            self._maybe_locked.append(outcome)
            self.check_locks_at = 0.0
        else:
            self._ready.append(outcome)

    def release_unlocked(self, locked: Collection[UUID]) -> None:
        """Of the late ones, let those in whose rows nobody has locked."""
        self._ready += [outcome for outcome in self._maybe_locked if outcome.execution.task_id not in locked]
        self._maybe_locked = [outcome for outcome in self._maybe_locked if outcome.execution.task_id in locked]
        self.check_locks_at = time.monotonic() + LOCK_CHECK_INTERVAL if self._maybe_locked else float("inf")

    def batch(self) -> list[ExecutionResult]:
        """What one tick is to store: all that is ready, unless the results are very large together."""
        batch: list[ExecutionResult] = []
        size = 0
        for outcome in self._ready:
            size += len(outcome.completion.result)
            if batch and size > MAX_BATCH_SIZE:
                break
            batch.append(outcome)
        return batch

    def remove(self, stored: Sequence[ExecutionResult]) -> None:
        """Take these out: they are stored."""
        keys = set(map(id, stored))
        self._ready = [outcome for outcome in self._ready if id(outcome) not in keys]

    def postpone(self, outcomes: Sequence[ExecutionResult]) -> None:
        """Try these again in a moment, and in a longer one each time: somebody changes something of their workflows."""
        if outcomes:
            self.remove(outcomes)
            self._postponed += outcomes
            self.retry_at = min(self.retry_at, time.monotonic() + self._pause)
            self._pause = min(1.5 * self._pause, _MAX_PAUSE)
        elif not self._postponed:
            self._pause = _FIRST_PAUSE

    def retry_postponed(self) -> None:
        """Try again what was blocked."""
        self._ready += self._postponed
        self._postponed = []
        self.retry_at = float("inf")
