"""The buffer of results that wait to be stored."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from .execution_result import ExecutionResult

#: Characters of results that one tick stores together; PostgreSQL takes 256 MB in one JSON value.
MAX_BATCH_SIZE: Final = 16_000_000

#: Seconds between two checks whether a row is still locked.
LOCK_CHECK_INTERVAL: Final = 1.0

#: Seconds that a change of a workflow usually keeps its row locked; and the longest pause between two attempts, for a
#: lock that is held longer, as by a user's own transaction.
_FIRST_PAUSE: Final = 0.002
_MAX_PAUSE: Final = 0.05


class ResultBuffer:
    """Results in the order in which they arrived. Times are monotonic, in seconds.

    A task that has saved its state may leave its row locked: by a thread that goes on, or by a query that the server
    has not given up yet. The worker must not wait for the lock, so such a result is kept until the row is free.
    """

    def __init__(self) -> None:
        self._ready: list[ExecutionResult] = []
        self._maybe_locked: list[ExecutionResult] = []
        self._postponed: list[ExecutionResult] = []
        self.check_locks_at = float("inf")
        self.retry_at = float("inf")
        self._pause = _FIRST_PAUSE

    def __bool__(self) -> bool:
        """Whether the buffer holds any result."""
        return bool(self._ready or self._maybe_locked or self._postponed)

    @property
    def next_at(self) -> float:
        """When a waiting result has to be looked at."""
        return min(self.check_locks_at, self.retry_at)

    @property
    def is_ready(self) -> bool:
        """Whether a result can be stored now."""
        return bool(self._ready)

    @property
    def maybe_locked(self) -> Collection[ExecutionResult]:
        """Results whose rows may be locked by their own executions."""
        return self._maybe_locked

    @property
    def all(self) -> Collection[ExecutionResult]:
        """All results."""
        return [*self._ready, *self._maybe_locked, *self._postponed]

    def put(self, result: ExecutionResult) -> None:
        """Add the result of an execution."""
        if result.execution.has_saved and not result.is_stored:
            self._maybe_locked.append(result)
            self.check_locks_at = 0.0
        else:
            self._ready.append(result)

    def release_unlocked(self, locked: Collection[UUID]) -> None:
        """Let those results be stored whose rows are not among the ``locked``."""
        self._ready += [result for result in self._maybe_locked if result.execution.task_id not in locked]
        self._maybe_locked = [result for result in self._maybe_locked if result.execution.task_id in locked]
        self.check_locks_at = time.monotonic() + LOCK_CHECK_INTERVAL if self._maybe_locked else float("inf")

    def batch(self) -> list[ExecutionResult]:
        """Return the results for one tick: all that are ready, unless they are very large together."""
        batch: list[ExecutionResult] = []
        size = 0
        for result in self._ready:
            size += len(result.completion.result)
            if batch and size > MAX_BATCH_SIZE:
                break
            batch.append(result)
        return batch

    def remove(self, stored: Sequence[ExecutionResult]) -> None:
        """Remove results that are stored."""
        keys = set(map(id, stored))
        self._ready = [result for result in self._ready if id(result) not in keys]

    def postpone(self, results: Sequence[ExecutionResult]) -> None:
        """Try these again after a pause that grows each time: another transaction locks them, or their workflows."""
        if results:
            self.remove(results)
            self._postponed += results
            self.retry_at = min(self.retry_at, time.monotonic() + self._pause)
            self._pause = min(1.5 * self._pause, _MAX_PAUSE)
        elif not self._postponed:
            self._pause = _FIRST_PAUSE

    def retry_postponed(self) -> None:
        """Try again what was postponed."""
        self._ready += self._postponed
        self._postponed = []
        self.retry_at = float("inf")
