"""The watchdog of running executions: time limits, revoked tasks, and the memory of the process."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from ..core.current_task import log_attributes
from ..core.exceptions import TaskRevoked, TaskTimeLimit
from .config import WorkerConfig
from .execution import CANCEL_GRACE, Execution
from .slot_pool import SlotPool

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two checks whether this worker still holds what it runs, once an execution has taken that long.
CHECK_INTERVAL: Final = 1.0

#: Minimum seconds between two such checks, however many notifications say that tasks were revoked.
MIN_CHECK_INTERVAL: Final = 0.1

#: Seconds between two attempts to interrupt an execution that was asked to stop.
INTERRUPT_INTERVAL: Final = 0.1

#: Seconds for which a check may count tasks instead of comparing their claims.
COMPARE_INTERVAL: Final = 10.0

_STATM: Final = Path("/proc/self/statm")
_MEGABYTE: Final = 1024 * 1024


class Watchdog:
    """Decides when to check which execution. Times are monotonic, in seconds."""

    def __init__(self, config: WorkerConfig, pools: Sequence[SlotPool]) -> None:
        self._config = config
        self._pools = pools
        self._stuck: set[Execution] = set()
        self._checked_at = float("-inf")
        self._compared_at = float("-inf")
        self._is_check_requested = False
        self._measured_at = float("-inf")

    @property
    def next_at(self) -> float:
        """When the watchdog next has something to do."""
        return min(self._next_stop(), self._next_check())

    def is_due(self) -> bool:
        """Whether an execution may have to be stopped now."""
        return time.monotonic() >= self._next_stop()

    def interrupt_due(self) -> bool:
        """Interrupt executions that are over their time limit or were asked to stop; return whether one is now stuck.

        An execution is stuck if it does not end within ``timeout_grace`` seconds: only the end of the process stops it.
        """
        now = time.monotonic()
        watched = [execution for pool in self._pools for execution in pool.watched]
        for execution in watched:
            if execution.stop_reason is None and now >= execution.ends_by:
                values = execution.task_id, execution.time_limit
                extra = log_attributes(execution.claim)
                logger.warning("task over its time limit id=%s limit=%gs", *values, extra=extra)
                execution.request_stop(TaskTimeLimit)
            execution.interrupt()
        stuck = {execution for execution in watched if self._is_stuck(execution)} - self._stuck
        for execution in stuck:
            message = "task can't be stopped id=%s: this runner takes no more work"
            logger.error(message, execution.task_id, extra=log_attributes(execution.claim))
        self._stuck |= stuck
        for pool in self._pools:
            pool.watch_from(min(map(self._stop_at, pool.watched), default=float("inf")))
        return bool(stuck)

    def may_finish(self) -> bool:
        """Whether an execution runs that may still end in this process."""
        for pool in self._pools:
            if pool.executor.is_blocked():
                continue
            if any(self._may_end(execution) for execution in pool.running.values()):
                return True
        return False

    def request_check(self) -> None:
        """Check soon whether this worker still holds what it runs: tasks were revoked."""
        self._is_check_requested = True

    def is_check_due(self) -> bool:
        """Whether to ask the database which running tasks this worker still holds."""
        return time.monotonic() >= self._next_check()

    def record_end(self, execution: Execution) -> None:
        """Check before its result is stored, if the worker has stood still: a reaper may have taken the task."""
        if time.monotonic() >= max(execution.submitted_at, self._checked_at) + CHECK_INTERVAL:
            self._is_check_requested = True

    def may_count(self) -> bool:
        """Whether a check may count the tasks that this worker holds: their claims were compared a short time ago."""
        return time.monotonic() < self._compared_at + COMPARE_INTERVAL

    def record_check(self) -> None:
        """Record that the running tasks were checked."""
        self._checked_at = time.monotonic()
        self._is_check_requested = False

    def revoked(
        self, executions: Collection[Execution], held: Collection[tuple[UUID, int]]
    ) -> list[tuple[SlotPool, Execution]]:
        """Return the executions whose tasks this worker does not hold any more and that were not yet asked to stop.

        ``executions`` were checked, and ``held`` are the ids and claims that the database knows of them.
        """
        self.record_check()
        self._compared_at = time.monotonic()
        checked = set(executions)
        return [
            (pool, execution)
            for pool in self._pools
            for execution in pool.running.values()
            if execution in checked
            and (execution.task_id, execution.claim.claim) not in held
            and execution.stop_reason is None
            and not execution.has_returned
        ]

    def exceeds_memory(self) -> bool:
        """Whether the process takes more than ``max_memory_mb``; measured once a second, False in between."""
        limit = self._config.max_memory_mb
        if limit is None or time.monotonic() - self._measured_at < CHECK_INTERVAL:
            return False
        self._measured_at = time.monotonic()
        size = resident_bytes() / _MEGABYTE
        if size > limit:
            logger.warning("runner over max_memory_mb memory=%d limit=%d: it is replaced", size, limit)
        return size > limit

    def _next_stop(self) -> float:
        """Return a time before which no execution has to be stopped: to ask each would take too long."""
        return min(pool.watch_at for pool in self._pools)

    def _stop_at(self, execution: Execution) -> float:
        if execution.stop_reason is None:
            return execution.ends_by if execution.has_started else time.monotonic() + (execution.time_limit or 0.0)
        if not execution.is_interrupted:
            return execution.interrupted_at + INTERRUPT_INTERVAL
        return float("inf") if execution in self._stuck else self._stuck_at(execution)

    def _next_check(self) -> float:
        if self._is_check_requested:
            return self._checked_at + MIN_CHECK_INTERVAL
        longest = max(pool.longest_running for pool in self._pools)
        if not longest:
            return float("inf")
        return max(self._checked_at + CHECK_INTERVAL, time.monotonic() + CHECK_INTERVAL - longest)

    def _may_end(self, execution: Execution) -> bool:
        ignores_until = execution.stop_requested_at + CANCEL_GRACE + self._config.timeout_grace
        ignores_stop = execution.stop_reason is TaskRevoked and time.monotonic() >= ignores_until
        return execution not in self._stuck and not ignores_stop

    def _is_stuck(self, execution: Execution) -> bool:
        return execution.stop_reason is not None and time.monotonic() >= self._stuck_at(execution)

    def _stuck_at(self, execution: Execution) -> float:
        """When an execution that was asked to stop counts as stuck. A revoked one keeps the time that it had left."""
        asked_at = execution.stop_requested_at
        is_over_limit = execution.stop_reason is TaskTimeLimit
        return (asked_at if is_over_limit else max(asked_at, execution.ends_by)) + self._config.timeout_grace


def resident_bytes_of(pid: int) -> int | None:
    """Return the memory of another process in bytes; None if it is gone, and without /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def resident_bytes() -> int:
    """Return the memory of the process in bytes; without /proc, the most that it ever took."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
