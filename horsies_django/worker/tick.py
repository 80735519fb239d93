"""The tick of a runner: it writes one transaction, applies to memory what that has committed, and publishes results."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from django.db import Error

from ..core import recent_exceptions
from ..core.status import TaskStatus
from ..db import postgres
from ..db.errors import is_permanent_error, lacks_privilege
from ..db.notifications import notify_slot_freed_after_commit, wake_after_commit
from ..models.claims import ClaimedTask, Completion, TaskRoute
from ..models.worker import WorkerRequest
from ..workflows.gateway import AdvanceFailed
from .config import Until
from .execution import Execution, ExecutionResult
from .poll import Poller
from .runner_state import RunnerState
from .slot_pool import SlotPool
from .started_registry import Activity
from .store import latest

logger = logging.getLogger("horsies_django.worker")

#: Seconds from the beginning of a tick for which its claims need no check: a reaper takes them much later.
CLAIM_CONFIRMED_FOR: Final = 0.5

#: Seconds for which results wait for the next claim, as long as claims follow each other within this time, so that they
#: share its statement. The result of a task that comes alone is stored at once.
RESULT_WAIT: Final = 0.005

#: Seconds until the next attempt to hand back tasks whose workflow another transaction has locked.
HAND_BACK_INTERVAL: Final = 0.05

#: A prefetched task that waits for its slot longer than this many stale thresholds is released, heartbeats or not.
MAX_STALE_THRESHOLDS: Final = 10


@dataclass(slots=True)
class Tick:
    """What one tick has committed. The producer applies it to the state in memory."""

    began_at: float = field(default_factory=lambda: time.monotonic())  # as in Execution
    stored: Sequence[ExecutionResult] = ()
    limit_keys: Collection[str] = ()  # limits that may have room now, of nodes that ended without running
    postponed: Sequence[ExecutionResult] = ()  # another transaction has locked them or their workflows
    refused: Sequence[ExecutionResult] = ()  # the database refuses them, and the failure of their tasks
    claimed: int = 0
    has_heartbeat: bool = False
    request: WorkerRequest | None = None  # of the worker's row, if the tick has a heartbeat
    has_resolved_doubt: bool = False
    is_in_doubt: bool = False
    started: list[tuple[SlotPool, list[ClaimedTask]]] = field(default_factory=list)
    prefetched: list[tuple[SlotPool, list[ClaimedTask]]] = field(default_factory=list)
    emptied: list[SlotPool] = field(default_factory=list)
    stalled: list[SlotPool] = field(default_factory=list)
    handed_back: list[tuple[SlotPool, list[ClaimedTask]]] = field(default_factory=list)  # and what has yet to wait


class Ticker:
    """Writes ticks, which changes nothing in memory but which queues may hold work, and applies them."""

    def __init__(self, state: RunnerState, poller: Poller) -> None:
        self._state = state
        self._store = state.store
        self._poller = poller
        self._pools = list(state.pools)  # in the order in which the next tick fills them
        self._max_wait = MAX_STALE_THRESHOLDS * state.options.recovery.claimed_stale_after
        self._activity = Activity()  # as the supervisor's metrics have it
        self.ended_at = self._claimed_at = float("-inf")
        self.claims_fast = False

    def write(self) -> Tick:
        """Write a tick. Raises django.db.Error or AdvanceFailed; the transaction may have committed even then."""
        state = self._state
        try:
            tick = self._write()
        except (Error, AdvanceFailed) as error:
            state.is_in_doubt = True
            if isinstance(error, Error) and postgres.is_lock_timeout(error):
                self._store.skip_locked()
            raise
        state.is_in_doubt = tick.is_in_doubt
        return tick

    def _write(self) -> Tick:
        """Store all results that are ready, and claim for the pools in their order.

        Queues that get tasks of workflows meanwhile are marked as ready: these are claimed with the rest. Raises
        django.db.Error or :class:`~..workflows.gateway.AdvanceFailed`; the transaction may have committed even then.
        """
        is_heartbeat_due = time.monotonic() >= self._state.next_heartbeat
        is_in_doubt = self._state.is_in_doubt
        batch = self._state.results.batch()
        tick = Tick(has_heartbeat=is_heartbeat_due, has_resolved_doubt=is_in_doubt)
        nodes = [result for result in batch if result.claimed.workflow_id is not None]
        noted = [result.execution for result in batch if result.execution.progress is not None]
        unsaved = [result.execution for result in batch if result.execution.unsaved_output]
        are_successes = all(result.completion.is_success for result in batch)
        is_one_statement = not (
            is_in_doubt
            or nodes
            or noted
            or unsaved
            or is_heartbeat_due
            or not are_successes
            or self._has_more_than_claims()
            or self._store.skips_locked
        )
        ends: list[Completion] = []
        try:
            with nullcontext() if is_one_statement else self._store.transaction():
                tick.postponed = self._store.locked_results(batch) if nodes or self._store.skips_locked else []
                tick.stored = [result for result in batch if result not in tick.postponed] if tick.postponed else batch
                unstored = [result for result in tick.stored if not result.is_stored]
                ends = latest([result.completion for result in unstored if not result.execution.has_lost_claim])
                successes = [end for end in ends if end.is_success]
                if is_in_doubt or is_heartbeat_due:  # a transaction in doubt may commit later still
                    self._store.hand_back_unknown(self._state.known_tasks)
                if is_heartbeat_due:
                    tick.request = self._store.heartbeat(
                        is_quiet=self._state.is_quiet, is_holding=self._state.is_holding
                    )
                with self._store.pipeline() if nodes else nullcontext():
                    self._store.note_progress(noted)
                    self._store.save([end for end in ends if not end.is_success])
                    if nodes:  # tasks that follow from these ends are claimed with the rest
                        self._store_successes(successes)
                        successes = []
                        advanced = [result for result in nodes if result not in tick.postponed]
                        new_tasks, tick.limit_keys = self._store.advance(advanced)
                        for queue, is_async in set(new_tasks.values()):
                            self._state.mark_ready(queue, is_async)
                for pool in self._next_pool() if is_one_statement else self._pools:
                    if self._fill(pool, tick, successes):
                        successes = []
                self._store_successes(successes)
                self._store.save_output(unsaved)  # last, when the rows of the tasks are locked
                if nodes:
                    self._notify_others(new_tasks, tick)
        except (Error, AdvanceFailed) as error:
            if not ends or (isinstance(error, Error) and not is_permanent_error(error)):
                raise
            logger.exception("results refused, storing them one by one count=%d", len(ends))
            self._store.save_output_apart(unsaved)
            refused = self._store.save_one_by_one(ends)
            return Tick(
                stored=[result for result in tick.stored if result.execution.task_id not in refused],
                refused=[result for result in tick.stored if result.execution.task_id in refused],
                is_in_doubt=True,
            )
        return tick

    def _has_more_than_claims(self) -> bool:
        return any(pool.withdrawn or pool.prefetched or pool.prefetch for pool in self._state.pools)

    def _next_pool(self) -> Sequence[SlotPool]:
        """One pool at a time: what is claimed for it starts before the next pool's claim."""
        return [pool for pool in self._pools if pool.queues and self._state.room_in(pool)][:1]

    def _store_successes(self, successes: Sequence[Completion]) -> None:
        """Store successes without a claim."""
        if successes:
            self._store.complete_and_claim(self._state.pools[0], successes, 0)

    def _notify_others(self, new_tasks: Mapping[UUID, TaskRoute], tick: Tick) -> None:
        """Notify other workers of the new tasks that this one has not claimed at once."""
        mine = {task.task_id for _, started in tick.started for task in started}
        for queue, is_async in {kind for task_id, kind in new_tasks.items() if task_id not in mine}:
            wake_after_commit(self._state.config.database, queue, is_async=is_async)

    def _fill(self, pool: SlotPool, tick: Tick, successes: Sequence[Completion]) -> bool:
        """Start and claim tasks for one pool, or release what it holds if nothing more may start.

        Return whether ``successes`` were stored by the claim.
        """
        if pool.withdrawn:
            tick.handed_back.append((pool, self._store.release(pool.withdrawn, TaskStatus.RUNNING)))
        is_stalled = self._state.may_claim and pool.is_overdue(self._max_wait)
        if is_stalled:
            tick.stalled.append(pool)
        if is_stalled or not self._state.may_claim:
            if pool.prefetched:
                tick.prefetched.append((pool, self._store.release(list(pool.prefetched), TaskStatus.CLAIMED)))
            return False
        if startable := pool.startable:
            tick.started.append((pool, self._store.start(startable)))
            tick.prefetched.append((pool, list(pool.prefetched)[len(startable) :]))
            return False
        room = self._state.room_in(pool)
        if not (pool.queues and room):
            return False
        free = min(room, max(0, pool.free - len(pool.prefetched))) if pool.prefetch else room
        started = self._store.complete_and_claim(pool, successes, free) if free or successes else []
        prefetched: list[ClaimedTask] = []
        if len(started) == free < room:
            prefetched = self._store.complete_and_claim(pool, (), room - free, starts=False)
            tick.prefetched.append((pool, [*pool.prefetched, *prefetched]))
        tick.claimed += len(started) + len(prefetched)
        if len(started) + len(prefetched) < room:
            tick.emptied.append(pool)
        tick.started.append((pool, started))
        return True

    def apply(self, tick: Tick) -> None:
        """Apply to memory what a tick has committed: remove results, submit executions, publish results."""
        state, interval = self._state, self._poller.interval
        self.ended_at = time.monotonic()
        self._note_pace(tick)
        state.results.remove(tick.stored)
        state.results.postpone(tick.postponed)
        state.results.set_aside(tick.refused)
        if tick.has_heartbeat:
            # A heartbeat that had to wait is as old as the tick is long.
            state.next_heartbeat = tick.began_at + state.options.recovery.heartbeat_interval
            if state.registry is not None:
                state.registry.record_heartbeat()
        self._apply_claims(tick)
        has_changed = tick.stored or tick.claimed or tick.handed_back
        if tick.has_resolved_doubt or (has_changed and state.config.until is Until.DRAINED):
            state.is_poll_requested = True  # handed back tasks can be claimed; a drain polls after its last change
        if tick.claimed:
            state.claimed += tick.claimed
            state.listener.record_useful()
            interval.record_claim()
        for pool, started in tick.started:
            self._rotate(pool, has_tasks=bool(started), is_emptied=pool in tick.emptied)
            pool.start_ahead.adapt()
            if pool.is_partial:
                pool.prefer_deep(started)
            self.submit(pool, self._without_repeated(pool, self._still_claimed(started, tick)))
        interval.poll_by(self._store.selector.unblocks_at)
        for result in tick.stored:
            if result.completion.delay is not None:
                interval.poll_by(time.monotonic() + result.completion.delay)
        self._poller.releaser.add([*(result.claimed.limit_key for result in tick.stored), *tick.limit_keys])
        with state.inbox.progress:
            self._delete_unretained(tick.stored)
            self._publish(tick.stored)
        self._record_activity(tick.stored)

    def _note_pace(self, tick: Tick) -> None:
        """Note whether claims follow each other fast, take all there is, and nothing waits for the ends of tasks."""
        self.claims_fast = (
            bool(tick.claimed and tick.emptied)
            and self.ended_at < self._claimed_at + RESULT_WAIT
            and not self._state.listener.has_subscribers
            and all(result.may_wait for result in tick.stored)
        )
        if tick.claimed:
            self._claimed_at = self.ended_at

    def _apply_claims(self, tick: Tick) -> None:
        state = self._state
        for pool in tick.stalled:
            pool.is_stalled = True  # it prefetches nothing until an execution ends
        for pool in tick.emptied:
            had_unlisted = pool.has_unlisted
            pool.mark_empty()
            state.is_poll_requested = state.is_poll_requested or (had_unlisted and not pool.queues)
        for pool, kept in tick.handed_back:
            state.claimed -= len(pool.withdrawn) - len(kept)
            pool.withdrawn = kept
        for pool, prefetched in tick.prefetched:
            pool.set_prefetched(prefetched)
        state.hand_back_at = time.monotonic() + HAND_BACK_INTERVAL if state.has_to_hand_back else 0.0

    def _rotate(self, pool: SlotPool, *, has_tasks: bool, is_emptied: bool) -> None:
        """Begin the next tick with the pool that found work last; two busy pools take turns."""
        self._pools.remove(pool)
        self._pools.insert(0 if has_tasks and is_emptied else len(self._pools), pool)

    def _still_claimed(self, started: list[ClaimedTask], tick: Tick) -> list[ClaimedTask]:
        """Return the claims that may start: after a long pause of the process, those that this worker still holds."""
        if not started or time.monotonic() - tick.began_at < CLAIM_CONFIRMED_FOR:
            return started
        state = self._state
        state.next_heartbeat = time.monotonic()  # the last one is as old in the table as the tick is long
        try:
            with state.inbox.progress:
                held = self._store.running_claims()
        except Error as error:  # the next tick hands them back
            logger.warning("claims not confirmed count=%d error=%s", len(started), error)
            state.is_in_doubt, held = True, set()
        return [task for task in started if (task.task_id, task.claim) in held]

    def _without_repeated(self, pool: SlotPool, started: list[ClaimedTask]) -> list[ClaimedTask]:
        """Hand back claims that have the task and the number of an execution of this runner; return the others.

        A failover that loses a claim lets its number be given again. The end of the first execution must not be stored
        under the second claim; the third one has another number.
        """
        ended = {(result.claimed.task_id, result.claimed.claim): result.execution for result in self._state.results.all}
        fresh: list[ClaimedTask] = []
        for task in started:
            key = task.task_id, task.claim
            if (first := pool.running.get(key) or ended.get(key)) is None:
                fresh.append(task)
            else:
                first.has_lost_claim = True
                pool.withdrawn.append(task)
                logger.warning("claim handed back id=%s: its number was given before a failover", task.task_id)
        return fresh

    def submit(self, pool: SlotPool, tasks: Sequence[ClaimedTask]) -> None:
        """Run tasks that this worker has claimed and started."""
        if not tasks:
            return
        executions = list(map(self._new_execution, tasks))
        pool.submit(executions)
        self._state.unmarked_nodes += [
            execution for execution in executions if execution.claimed.workflow_id is not None
        ]

    def _new_execution(self, claimed: ClaimedTask) -> Execution:
        state = self._state
        time_limit = state.config.task_timeout if claimed.timeout is None else claimed.timeout
        slot = None if state.registry is None else state.registry.acquire()
        return Execution(claimed, state.options, state.worker, time_limit=time_limit, slot=slot)

    # What follows the commit. Nothing here can undo a result.

    def _delete_unretained(self, ended: Sequence[ExecutionResult]) -> None:
        """Delete tasks with a retention of zero. A failure leaves them to the reaper."""
        if not ended:
            return
        try:
            self._store.delete_unretained(ended)
        except Exception as error:
            if isinstance(error, Error) and lacks_privilege(error):
                self._state.stop_forbidden(error)
            else:
                logger.exception("tasks without retention left to the reaper")

    def _publish(self, ended: Sequence[ExecutionResult]) -> None:
        """Log results, send their signals, and notify workers and callers that wait for them."""
        if not ended:
            return
        state = self._state
        for result in ended:
            state.release_slot(result.execution)
            result.log()
        for queue_name in self._store.selector.notify_on_release({result.claimed.queue_name for result in ended}):
            notify_slot_freed_after_commit(state.config.database, queue_name)
        state.listener.publish_completed(result.execution.task_id for result in ended if result.is_final)
        state.signals.enqueue_results(ended)
        raised = {result: result.exception for result in ended if result.exception is not None}
        if state.registry is not None:
            if raised:
                state.signals.run_after_sent(partial(recent_exceptions.drop_tracebacks, list(raised.values())))
            return
        for result, exception in raised.items():
            if result.is_final:
                recent_exceptions.keep(result.execution.task_id, exception)  # the handle may be in this process

    def _record_activity(self, ended: Sequence[ExecutionResult]) -> None:
        """Record for the supervisor's metrics which attempts have ended, and how many slots are taken."""
        if self._state.registry is None:
            return
        completed, failed, retried, *_ = self._activity
        for result in ended:
            completion = result.completion
            if completion.error is None:
                completed += completion.delay is None
            elif completion.delay is None:
                failed += 1
            else:
                retried += 1
        taken = {pool.is_async: min(len(pool.running), pool.slots) for pool in self._state.pools}
        activity = Activity(completed, failed, retried, taken.get(False, 0), taken.get(True, 0))
        if activity != self._activity:
            self._activity = activity
            self._state.registry.record_activity(activity)
