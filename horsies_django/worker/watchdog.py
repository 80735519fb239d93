"""Watching over the bodies that run: time limits, revoked tasks, and the size of the process."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from ..core.exceptions import TaskRevoked, TaskTimeLimit
from .config import WorkerConfig
from .execution import CANCEL_GRACE, Execution
from .slot_pool import SlotPool

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two looks whether running tasks are still this worker's, once a body has run for as long.
CHECK_INTERVAL: Final = 1.0

#: Seconds between two of them at least, however often somebody says that tasks were revoked.
MIN_CHECK_INTERVAL: Final = 0.1

#: Seconds between two tries to stop a body that was told to.
INTERRUPT_INTERVAL: Final = 0.1

_STATM: Final = Path("/proc/self/statm")
_MEGABYTE: Final = 1024 * 1024


class Watchdog:
    """Knows when to look after which body. Times are monotonic, in seconds."""

    def __init__(self, config: WorkerConfig, pools: Sequence[SlotPool]) -> None:
        self._config = config
        self._pools = pools
        self._stuck: set[Execution] = set()
        self._checked_at = float("-inf")
        self._is_hurried = False
        self._weighed_at = float("-inf")
        self.is_too_large = False

    @property
    def next(self) -> float:
        """When something here is to be done."""
        return min(self._next_stop(), self._next_check())

    def is_due(self) -> bool:
        """Whether a body has to be stopped."""
        return time.monotonic() >= self._next_stop()

    def stop_bodies(self) -> bool:
        """Stop the bodies whose time is up or that were told to stop; return whether one of them can't be stopped."""
        now = time.monotonic()
        for execution in list(self._watched()):
            if execution.stop_reason is None and now >= execution.ends_by:
                logger.warning("task over its time limit id=%s limit=%gs", execution.task_id, execution.time_limit)
                execution.request_stop(TaskTimeLimit)
            execution.interrupt()
        stuck = {execution for execution in self._watched() if self._is_stuck(execution)} - self._stuck
        for execution in stuck:
            logger.error("task can't be stopped id=%s: this runner takes no more work", execution.task_id)
        self._stuck |= stuck
        return bool(stuck)

    def hopeful(self) -> bool:
        """Whether a body runs that may still come to its end here."""
        for pool in self._pools:
            if pool.executor.is_blocked():
                continue
            if any(self._is_hopeful(execution) for execution in pool.running.values()):
                return True
        return False

    def hurry(self) -> None:
        """Somebody said that tasks were revoked: check now."""
        self._is_hurried = True

    def wants_check(self) -> bool:
        """Whether to ask the database about the running tasks."""
        self._weigh()
        return time.monotonic() >= self._next_check()

    def checked(self, executions: Collection[Execution], mine: Collection[tuple[UUID, int]]) -> None:
        """Tell the bodies of tasks that are no longer this worker's."""
        self._checked_at = time.monotonic()
        self._is_hurried = False
        for pool in self._pools:
            for execution in pool.running.values():
                is_lost = execution in executions and (execution.task_id, execution.claim.claim) not in mine
                if is_lost and execution.stop_reason is None and not execution.is_over:
                    logger.warning("task revoked id=%s: its body is told to stop", execution.task_id)
                    execution.request_stop(TaskRevoked)
                    pool.watched.add(execution)
                    execution.interrupt()

    def _watched(self) -> list[Execution]:
        return [execution for pool in self._pools for execution in pool.watched]

    def _next_stop(self) -> float:
        moments = [self._moment(execution) for execution in self._watched()]
        return min(moments, default=float("inf"))

    def _moment(self, execution: Execution) -> float:
        if execution.stop_reason is None:
            return execution.ends_by
        if not execution.is_interrupted:
            return execution.interrupted_at + INTERRUPT_INTERVAL
        return float("inf") if execution in self._stuck else self._patience_ends(execution)

    def _next_check(self) -> float:
        longest = max(pool.longest_running for pool in self._pools)
        if not longest:
            return float("inf")
        return (
            self._checked_at + MIN_CHECK_INTERVAL
            if self._is_hurried
            else max(self._checked_at + CHECK_INTERVAL, time.monotonic() + CHECK_INTERVAL - longest)
        )

    def _is_hopeful(self, execution: Execution) -> bool:
        is_deaf = (
            execution.stop_reason is TaskRevoked
            and time.monotonic() >= execution.stop_requested_at + CANCEL_GRACE + self._config.timeout_grace
        )
        return execution not in self._stuck and not is_deaf

    def _is_stuck(self, execution: Execution) -> bool:
        return execution.stop_reason is not None and time.monotonic() >= self._patience_ends(execution)

    def _patience_ends(self, execution: Execution) -> float:
        """When a body that was told to stop counts as stuck. A revoked one may take all the time that it had."""
        over_at = (
            execution.stop_requested_at
            if execution.stop_reason is TaskTimeLimit
            else max(execution.stop_requested_at, execution.ends_by)
        )
        return over_at + self._config.timeout_grace

    def _weigh(self) -> None:
        """See, once a second, how much memory the process takes."""
        limit = self._config.max_memory_mb
        if limit is None or time.monotonic() - self._weighed_at < CHECK_INTERVAL:
            return
        self._weighed_at = time.monotonic()
        size = resident_bytes() / _MEGABYTE
        if size > limit and not self.is_too_large:
            logger.warning("runner takes %d MB, allowed are %d: it is replaced", size, limit)
            self.is_too_large = True


def resident_bytes() -> int:
    """What the process takes now; where /proc is not there to tell, the most that it ever took."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
