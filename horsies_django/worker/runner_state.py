"""The state of a runner: its parts, what it holds and knows, how much more it may claim, and when it leaves."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from django.db import Error

from ..models.check_migrated import MissingPrivilege, raise_if_forbidden
from ..models.claims import ClaimedTask, WorkerInfo
from .config import HOSTNAME, Until, WorkerConfig
from .execution import Execution, ExecutionResult
from .inbox import Command, Inbox
from .listener import Listener
from .signal_dispatcher import SignalDispatcher
from .slot_pool import SlotPool
from .started_registry import ExitReason, Notice, StartedRegistry
from .store import WorkerStore

logger = logging.getLogger("horsies_django.worker")

NEVER: Final = float("inf")

#: Characters of results that one tick stores together; PostgreSQL takes 256 MB in one JSON value.
MAX_BATCH_SIZE: Final = 16_000_000

#: Seconds between two checks whether a row is still locked.
LOCK_CHECK_INTERVAL: Final = 1.0

#: Seconds that a change of a workflow usually keeps its row locked; and the longest pause between two attempts, for a
#: lock that is held longer, as by a user's own transaction.
_FIRST_PAUSE: Final = 0.002
_MAX_PAUSE: Final = 0.05

#: Receives why a runner takes no more work, or a notice, and returns whether there is a supervisor.
Report = Callable[[ExitReason | Notice], bool]


class RunnerState:
    """What the producer and its parts (tick, poll, watchdog) share. Times are monotonic, in seconds.

    Without a ``registry`` there is no supervisor, and the caller of a task may be in this process.
    """

    def __init__(
        self,
        config: WorkerConfig,
        worker_id: str,
        inbox: Inbox,
        pools: Sequence[SlotPool],
        report: Report = lambda _: False,
        registry: StartedRegistry | None = None,
    ) -> None:
        self.config = config
        self.options = config.options  # each look-up would cost as much as a short task
        self.worker = WorkerInfo(worker_id, HOSTNAME, os.getpid())
        self.inbox = inbox
        self.pools = pools
        self.report = report
        self.registry = registry
        self.store = WorkerStore(config, self.worker)
        self.listener = Listener(config, worker_id, inbox, report)
        self.signals = SignalDispatcher(
            config.database,
            has_thread=not pools[0].executor.is_inline,
            on_sent=partial(inbox.put, Command.POLL) if config.until is Until.DRAINED else None,
        )
        self.results = ResultBuffer()
        self.next_heartbeat = time.monotonic() + self.options.recovery.heartbeat_interval
        self.hand_back_at = 0.0

        # How much more the runner claims, and when it leaves.
        self.claimed = 0
        self.stop_by: float | None = None  # set by a stop: running executions have until then
        self.exit_reason: ExitReason | None = None  # set when the runner retires without having been stopped
        self.has_outgrown_memory = False
        self.is_quiet = config.is_quiet  # it claims nothing until it is resumed

        # What the runner knows of the tables.
        self.is_in_doubt = False  # a transaction may have committed although its answer was lost
        self.is_poll_requested = True
        self.is_held_back = False  # tasks are due that limits hold back for now
        self.unmarked_nodes: list[Execution] = []  # workflow nodes not yet shown as running

    # How much more it claims.

    @property
    def is_spent(self) -> bool:
        """Whether the runner has reached ``max_tasks_per_child`` or ``max_memory_mb``."""
        limit = self.config.max_tasks_per_child
        return (limit is not None and self.claimed >= limit) or (self.has_outgrown_memory and self.claimed > 0)

    @property
    def has_run_out(self) -> bool:
        """Whether the runner will never claim again."""
        has_claimed_once = self.claimed > 0 and self.config.until is Until.ONE_CLAIM
        return self.stop_by is not None or self.exit_reason is not None or has_claimed_once or self.is_spent

    @property
    def may_claim(self) -> bool:
        """Whether the runner may claim at all. A quiet one may not until it is resumed."""
        return not (self.is_quiet or self.has_run_out)

    def has_room(self) -> bool:
        """Whether the runner may claim and has a slot for the task."""
        return self.may_claim and any(pool.room for pool in self.pools)

    def room_in(self, pool: SlotPool) -> int:
        """How many tasks may be claimed for a pool."""
        limit = self.config.max_tasks_per_child
        return pool.room if limit is None else min(pool.room, max(0, limit - self.claimed))

    # What it holds.

    @property
    def is_holding(self) -> bool:
        """Whether the runner holds tasks, or results that are not stored."""
        if self.is_in_doubt or self.results:
            return True
        return any(pool.running or pool.prefetched or pool.withdrawn for pool in self.pools)

    @property
    def has_to_hand_back(self) -> bool:
        """Whether tasks have to go back to their queues."""
        return any(pool.withdrawn or (pool.prefetched and not self.may_claim) for pool in self.pools)

    @property
    def executions(self) -> list[Execution]:
        """The executions that run or wait for their slots."""
        return [execution for pool in self.pools for execution in pool.running.values()]

    @property
    def known_tasks(self) -> list[ClaimedTask]:
        """Every task that this runner knows to hold."""
        running = [execution.claimed for execution in self.executions]
        prefetched = [task for pool in self.pools for task in pool.prefetched]
        return [*running, *prefetched, *(result.claimed for result in self.results.all)]

    def mark_ready(self, queue_name: str, is_async: bool | None) -> None:
        """Note that this queue may hold tasks of a kind, or of both with None, unless this worker does not serve it."""
        for pool in self.pools:
            if is_async in (None, pool.is_async) and self.config.serves(queue_name):
                pool.mark_ready(queue_name)

    def release_slot(self, execution: Execution) -> None:
        """Let another execution have the place of this one in the registry."""
        if self.registry is not None:
            self.registry.release(execution.slot)

    def withdraw(self, *pools: SlotPool) -> None:
        """Take back what was submitted to these pools and has not started."""
        for pool in pools:
            for execution in pool.withdraw():
                self.release_slot(execution)

    def hand_back(self) -> None:
        """Take back what has not started, and let long work go back where it can go on from."""
        self.withdraw(*self.pools)
        for execution in self.executions:
            execution.is_leaving = True

    # When it leaves.

    def stop(self) -> None:
        """Claim no more; wait for running executions, for ``shutdown_timeout`` seconds at most."""
        if self.stop_by is None:
            logger.info("worker stopping id=%s running=%d", self.worker.worker_id, len(self.executions))
            self.stop_by = time.monotonic() + self.config.shutdown_timeout
            self.hand_back()

    def stop_on_request(self) -> None:
        """Claim no more; wait for running executions, as long as they take; then leave for good."""
        if self.stop_by is None and self.exit_reason is None:
            logger.info("worker asked to stop id=%s running=%d", self.worker.worker_id, len(self.executions))
            self.exit_reason = ExitReason.STOP_REQUESTED
            self.hand_back()

    def stop_forbidden(self, error: Error) -> None:
        """Stop, because the role has lost a privilege and no other attempt would succeed. Logs that once."""
        if self.exit_reason is ExitReason.FORBIDDEN:
            return
        try:
            raise_if_forbidden(self.config.database, error)
        except MissingPrivilege as problem:
            logger.error("worker lost a privilege id=%s error=%s", self.worker.worker_id, problem)
        self.exit_reason = ExitReason.FORBIDDEN
        self.stop()

    @property
    def reported_exit_reason(self) -> ExitReason:
        """Why the runner leaves, if it leaves now."""
        reason = self.exit_reason
        if self.stop_by is not None and reason not in (ExitReason.STOP_REQUESTED, ExitReason.FORBIDDEN):
            return ExitReason.DONE
        return reason or (ExitReason.SPENT if self.is_spent else ExitReason.DONE)


class ResultBuffer:
    """Results that wait to be stored, in the order in which they arrived. Times are monotonic, in seconds.

    A task that has saved its state may leave its row locked: by a thread that goes on, or by a query that the server
    has not given up yet. The worker must not wait for the lock, so such a result is kept until the row is free.
    A result that the database refuses in every form is kept until the database accepts it.
    """

    def __init__(self) -> None:
        self.ready: list[ExecutionResult] = []
        self.maybe_locked: list[ExecutionResult] = []  # by their own executions, or refused by the database
        self._postponed: list[ExecutionResult] = []
        self.check_locks_at = NEVER
        self.retry_at = NEVER
        self._pause = _FIRST_PAUSE

    def __bool__(self) -> bool:
        """Whether the buffer holds any result."""
        return bool(self.ready or self.maybe_locked or self._postponed)

    @property
    def all(self) -> Collection[ExecutionResult]:
        """All results."""
        return [*self.ready, *self.maybe_locked, *self._postponed]

    def put(self, result: ExecutionResult) -> None:
        """Add the result of an execution."""
        if result.execution.has_saved and not result.is_stored:
            self.maybe_locked.append(result)
            self.check_locks_at = 0.0
        else:
            self.ready.append(result)

    def set_aside(self, refused: Collection[ExecutionResult]) -> None:
        """Try these again after a second: to run their tasks again would repeat what the bodies have done."""
        if refused:
            self.remove(refused)
            self.maybe_locked += refused
            self.check_locks_at = min(self.check_locks_at, time.monotonic() + LOCK_CHECK_INTERVAL)

    def release_unlocked(self, locked: Collection[UUID]) -> None:
        """Let those results be stored whose rows are not among the ``locked``."""
        self.ready += [result for result in self.maybe_locked if result.execution.task_id not in locked]
        self.maybe_locked = [result for result in self.maybe_locked if result.execution.task_id in locked]
        self.check_locks_at = time.monotonic() + LOCK_CHECK_INTERVAL if self.maybe_locked else NEVER

    def batch(self) -> list[ExecutionResult]:
        """Return the results for one tick: all that are ready, unless they are very large together."""
        size = 0
        for count, result in enumerate(self.ready):
            size += len(result.completion.result)
            if count and size > MAX_BATCH_SIZE:
                return self.ready[:count]
        return self.ready[:]

    def remove(self, stored: Collection[ExecutionResult]) -> None:
        """Remove results that are stored."""
        keys = set(map(id, stored))
        self.ready = [result for result in self.ready if id(result) not in keys]

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
        self.ready += self._postponed
        self._postponed = []
        self.retry_at = NEVER
