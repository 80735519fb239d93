"""The watchdog of running executions: time limits, revoked tasks, and the memory of the process."""

from __future__ import annotations

import logging
import time
from typing import Final

from ..core.current_task import log_attributes
from ..core.exceptions import TaskRevoked, TaskTimeLimit
from ..core.platform import resident_bytes
from .execution import CANCEL_GRACE, Execution
from .runner_state import NEVER, RunnerState

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two checks whether this worker still holds what it runs, once an execution has taken that long.
CHECK_INTERVAL: Final = 1.0

#: Minimum seconds between two such checks, however many notifications say that tasks were revoked.
MIN_CHECK_INTERVAL: Final = 0.1

#: Seconds between two attempts to interrupt an execution that was asked to stop.
INTERRUPT_INTERVAL: Final = 0.1

_MEGABYTE: Final = 1024 * 1024


class Watchdog:
    """Decides when to check which execution, and stops executions. Times are monotonic, in seconds."""

    def __init__(self, state: RunnerState) -> None:
        self._state = state
        self._stuck: set[Execution] = set()
        self._checked_at = self._output_saved_at = -NEVER
        self._is_check_requested = False
        self._measured_at = -NEVER

    @property
    def next_stop(self) -> float:
        """A time before which no execution has to be stopped: to ask each would take too long."""
        return min(pool.watch_at for pool in self._state.pools)

    @property
    def next_check(self) -> float:
        """When to ask the database which running tasks this worker still holds."""
        if self._is_check_requested:
            return self._checked_at + MIN_CHECK_INTERVAL
        oldest = min(pool.oldest_start for pool in self._state.pools)
        return max(self._checked_at, oldest) + CHECK_INTERVAL

    def interrupt_due(self) -> bool:
        """Interrupt executions that are over their time limit or were asked to stop.

        One that does not end within ``timeout_grace`` seconds is stuck: only the end of the process stops it. Return
        whether the process has to end for one. In an embedded worker each keeps its slot instead.
        """
        now, is_embedded = time.monotonic(), self._state.config.is_embedded
        watched = [execution for pool in self._state.pools for execution in pool.watched]
        for execution in watched:
            if execution.stop_reason is None and now >= execution.ends_by:
                values = execution.task_id, execution.time_limit
                extra = log_attributes(execution.claimed)
                logger.warning("task over its time limit id=%s limit=%gs", *values, extra=extra)
                execution.request_stop(TaskTimeLimit)
            execution.interrupt()
        stuck = {execution for execution in watched if self._is_stuck(execution)} - self._stuck
        for execution in stuck:
            effect = "it keeps its slot until it ends" if is_embedded else "this runner takes no more work"
            message = "task can't be stopped id=%s: %s"
            logger.error(message, execution.task_id, effect, extra=log_attributes(execution.claimed))
        self._stuck |= stuck
        for pool in self._state.pools:
            pool.watch_at = min(map(self._stop_at, pool.watched), default=NEVER)
        return bool(stuck) and not is_embedded

    def may_finish(self) -> bool:
        """Whether an execution runs that may still end in this process."""
        pools = (pool for pool in self._state.pools if not pool.executor.is_blocked())
        return any(self._may_end(execution) for pool in pools for execution in pool.running.values())

    def request_check(self) -> None:
        """Check soon whether this worker still holds what it runs: tasks were revoked."""
        self._is_check_requested = True

    def record_end(self, execution: Execution) -> None:
        """Check before its result is stored, if the worker has stood still: a reaper may have taken the task."""
        self._stuck.discard(execution)
        if time.monotonic() >= max(execution.submitted_at, self._checked_at) + CHECK_INTERVAL:
            self._is_check_requested = True

    def check_claims(self) -> bool:
        """Store the progress and the output of running executions; stop those whose tasks this worker no longer holds.

        Executions that have ended and lost their tasks are marked as revoked too, for the log.
        """
        state, executions = self._state, self._state.executions
        for execution, note in state.store.note_progress(executions).items():
            execution.stored_progress = note
        if time.monotonic() >= self._output_saved_at + CHECK_INTERVAL:
            self.save_output()
        results = () if state.is_in_doubt else state.results.all
        ended = [result.execution for result in results if not result.is_stored]
        held = state.store.running_claims()
        for execution in ended:
            if (execution.task_id, execution.claimed.claim) not in held:
                execution.has_lost_claim = True
                execution.request_stop(TaskRevoked)
        for pool in state.pools:
            for execution in pool.running.values():
                if (execution.task_id, execution.claimed.claim) in held or execution.stop_reason is not None:
                    continue
                execution.has_lost_claim = True
                if not execution.has_returned:
                    message = "task revoked id=%s: it is asked to stop"
                    logger.warning(message, execution.task_id, extra=log_attributes(execution.claimed))
                    execution.request_stop(TaskRevoked)
                    pool.watch(execution)
                    execution.interrupt()
        self._checked_at = time.monotonic()
        self._is_check_requested = False
        return True

    def save_output(self) -> bool:
        """Store what executions have written and logged since the last time; not of one that stores its own result."""
        self._output_saved_at = time.monotonic()
        ended = (result.execution for result in self._state.results.all)
        unsaved = [execution for execution in (*self._state.executions, *ended) if execution.unsaved_output]
        if running := [execution for execution in unsaved if not execution.has_returned]:
            self._state.store.save_output_apart(running)
        return True

    def check_memory(self) -> None:
        """Note that the process takes more than ``max_memory_mb``; measured once a second, until then."""
        state, limit = self._state, self._state.config.max_memory_mb
        if limit is None or state.has_outgrown_memory or time.monotonic() - self._measured_at < CHECK_INTERVAL:
            return
        self._measured_at = time.monotonic()
        size = (resident_bytes() or 0) / _MEGABYTE
        if size > limit:
            logger.warning("runner over max_memory_mb memory=%d limit=%d: it is replaced", size, limit)
            state.has_outgrown_memory = True

    def _stop_at(self, execution: Execution) -> float:
        if execution.stop_reason is None:
            return execution.ends_by if execution.has_started else time.monotonic() + (execution.time_limit or 0.0)
        if not execution.is_interrupted:
            return execution.interrupted_at + INTERRUPT_INTERVAL
        return NEVER if execution in self._stuck else self._stuck_at(execution)

    def _may_end(self, execution: Execution) -> bool:
        ignores_until = execution.stop_requested_at + CANCEL_GRACE + self._state.config.timeout_grace
        ignores_stop = execution.stop_reason is TaskRevoked and time.monotonic() >= ignores_until
        return execution not in self._stuck and not ignores_stop

    def _is_stuck(self, execution: Execution) -> bool:
        return execution.stop_reason is not None and time.monotonic() >= self._stuck_at(execution)

    def _stuck_at(self, execution: Execution) -> float:
        """When an execution that was asked to stop counts as stuck. A revoked one keeps the time that it had left."""
        asked_at = execution.stop_requested_at
        is_over_limit = execution.stop_reason is TaskTimeLimit
        return (asked_at if is_over_limit else max(asked_at, execution.ends_by)) + self._state.config.timeout_grace
