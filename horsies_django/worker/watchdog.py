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
from .config import Plan
from .execution import COURTESY, Run
from .slots import Lane

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two looks whether running tasks are still this worker's, once a body has run for as long.
EVERY: Final = 1.0

#: Seconds between two of them at least, however often somebody says that tasks were revoked.
HURRIED: Final = 0.1

#: Seconds between two tries to stop a body that was told to.
INSIST: Final = 0.1

_STATM: Final = Path("/proc/self/statm")
_MEGABYTE: Final = 1024 * 1024


class Watch:
    """Knows when to look after which body. Times are monotonic, in seconds."""

    def __init__(self, plan: Plan, lanes: Sequence[Lane]) -> None:
        self._plan = plan
        self._lanes = lanes
        self._stuck: set[Run] = set()
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
        for run in list(self._watched()):
            if run.told is None and now >= run.ends_by:
                logger.warning("task over its time limit id=%s limit=%gs", run.task_id, run.time_limit)
                run.tell(TaskTimeLimit)
            run.interrupt()
        stuck = {run for run in self._watched() if self._is_stuck(run)} - self._stuck
        for run in stuck:
            logger.error("task can't be stopped id=%s: this runner takes no more work", run.task_id)
        self._stuck |= stuck
        return bool(stuck)

    def hopeful(self) -> bool:
        """Whether a body runs that may still come to its end here."""
        for lane in self._lanes:
            if lane.executor.is_blocked():
                continue
            if any(self._is_hopeful(run) for run in lane.running.values()):
                return True
        return False

    def hurry(self) -> None:
        """Somebody said that tasks were revoked: check now."""
        self._is_hurried = True

    def wants_check(self) -> bool:
        """Whether to ask the database about the running tasks."""
        self._weigh()
        return time.monotonic() >= self._next_check()

    def checked(self, runs: Collection[Run], mine: Collection[tuple[UUID, int]]) -> None:
        """Tell the bodies of tasks that are no longer this worker's."""
        self._checked_at = time.monotonic()
        self._is_hurried = False
        for lane in self._lanes:
            for run in lane.running.values():
                is_lost = run in runs and (run.task_id, run.claim.claim) not in mine
                if is_lost and run.told is None and not run.is_over:
                    logger.warning("task revoked id=%s: its body is told to stop", run.task_id)
                    run.tell(TaskRevoked)
                    lane.watched.add(run)
                    run.interrupt()

    def _watched(self) -> list[Run]:
        return [run for lane in self._lanes for run in lane.watched]

    def _next_stop(self) -> float:
        moments = [self._moment(run) for run in self._watched()]
        return min(moments, default=float("inf"))

    def _moment(self, run: Run) -> float:
        if run.told is None:
            return run.ends_by
        if not run.is_sent:
            return run.tried_at + INSIST
        return float("inf") if run in self._stuck else self._patience_ends(run)

    def _next_check(self) -> float:
        longest = max(lane.longest for lane in self._lanes)
        if not longest:
            return float("inf")
        return (
            self._checked_at + HURRIED
            if self._is_hurried
            else max(self._checked_at + EVERY, time.monotonic() + EVERY - longest)
        )

    def _is_hopeful(self, run: Run) -> bool:
        is_deaf = run.told is TaskRevoked and time.monotonic() >= run.told_at + COURTESY + self._plan.timeout_grace
        return run not in self._stuck and not is_deaf

    def _is_stuck(self, run: Run) -> bool:
        return run.told is not None and time.monotonic() >= self._patience_ends(run)

    def _patience_ends(self, run: Run) -> float:
        """When a body that was told to stop counts as stuck. A revoked one may take all the time that it had."""
        over_at = run.told_at if run.told is TaskTimeLimit else max(run.told_at, run.ends_by)
        return over_at + self._plan.timeout_grace

    def _weigh(self) -> None:
        """See, once a second, how much memory the process takes."""
        limit = self._plan.max_memory_mb
        if limit is None or time.monotonic() - self._weighed_at < EVERY:
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
