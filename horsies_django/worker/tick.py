"""The tick of a runner: it writes one transaction, applies to memory what that has committed, and publishes results."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from django.db import Error

from ..core import recent_exceptions
from ..db import postgres
from ..db.errors import lacks_privilege
from ..db.notifications import notify_slot_freed_after_commit
from ..models.claims import ClaimedTask
from ..workflows.gateway import AdvanceFailed
from .config import Until
from .execution import Execution, ExecutionResult
from .poll import Poller
from .runner_state import RunnerState
from .slot_pool import SlotPool
from .started_registry import Activity
from .tick_transaction import Tick, TickTransaction

logger = logging.getLogger("horsies_django.worker")

#: Seconds from the beginning of a tick for which its claims need no check: a reaper takes them much later.
CLAIM_CONFIRMED_FOR: Final = 0.5

#: Seconds until the next attempt to hand back tasks whose workflow another transaction has locked.
HAND_BACK_INTERVAL: Final = 0.05


class Ticker:
    """Writes ticks and applies them."""

    def __init__(self, state: RunnerState, poller: Poller) -> None:
        self._state = state
        self._poller = poller
        self._transaction = TickTransaction(state)
        self._pools = list(state.pools)  # in the order in which the next tick fills them
        self._activity = Activity()  # as the supervisor's metrics have it
        self.ended_at = float("-inf")

    def write(self) -> Tick:
        """Write a tick. Raises django.db.Error or AdvanceFailed; the transaction may have committed even then."""
        state = self._state
        try:
            if not state.is_holding and not any(pool.queues for pool in state.pools):
                tick = self._transaction.write_heartbeat()
            else:
                tick = self._transaction.write(self._pools)
        except (Error, AdvanceFailed) as error:
            state.is_in_doubt = True
            if isinstance(error, Error) and postgres.is_lock_timeout(error):
                state.store.skip_locked()
            raise
        state.is_in_doubt = tick.is_in_doubt
        return tick

    def apply(self, tick: Tick) -> None:
        """Apply to memory what a tick has committed: remove results, submit executions, publish results."""
        state, interval = self._state, self._poller.interval
        self.ended_at = time.monotonic()
        state.results.remove(tick.stored)
        state.results.postpone(tick.postponed)
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
            self._rotate(pool, found=bool(started), is_emptied=pool in tick.emptied)
            pool.start_ahead.adapt()
            if pool.is_partial:
                pool.prefer_deep(started)
            self.submit(pool, self._still_claimed(started, tick))
        interval.poll_by(state.store.selector.unblocks_at)
        for result in tick.stored:
            if result.completion.delay is not None:
                interval.poll_by(time.monotonic() + result.completion.delay)
        self._poller.releaser.add([*(result.claim.limit_key for result in tick.stored), *tick.limit_keys])
        with state.inbox.progress:
            self._delete_unretained(tick.stored)
            self._publish(tick.stored)
        self._record_activity(tick.stored)

    def _apply_claims(self, tick: Tick) -> None:
        state = self._state
        for pool in tick.stalled:
            pool.mark_stalled()
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

    def _rotate(self, pool: SlotPool, *, found: bool, is_emptied: bool) -> None:
        """Begin the next tick with the pool that found work last; two busy pools take turns."""
        self._pools.remove(pool)
        self._pools.insert(0 if found and is_emptied else len(self._pools), pool)

    def _still_claimed(self, started: list[ClaimedTask], tick: Tick) -> list[ClaimedTask]:
        """Return the claims that may start: after a long pause of the process, those that this worker still holds."""
        if not started or time.monotonic() - tick.began_at < CLAIM_CONFIRMED_FOR:
            return started
        state = self._state
        state.next_heartbeat = time.monotonic()  # the last one is as old in the table as the tick is long
        try:
            with state.inbox.progress:
                held = state.store.still_held(started)
        except Error as error:  # the next tick hands them back
            logger.warning("claims not confirmed count=%d error=%s", len(started), error)
            state.is_in_doubt, held = True, set()
        return [claim for claim in started if (claim.task_id, claim.claim) in held]

    def submit(self, pool: SlotPool, claims: Sequence[ClaimedTask]) -> None:
        """Run tasks that this worker has claimed and started."""
        if not claims:
            return
        executions = list(map(self._new_execution, claims))
        pool.submit(executions)
        self._state.unmarked_nodes += [one for one in executions if one.claim.workflow_id is not None]

    def _new_execution(self, claim: ClaimedTask) -> Execution:
        state = self._state
        time_limit = state.config.task_timeout if claim.timeout is None else claim.timeout
        slot = None if state.registry is None else state.registry.acquire()
        return Execution(claim, state.options, state.worker, time_limit=time_limit, slot=slot)

    # What follows the commit. Nothing here can undo a result.

    def _delete_unretained(self, ended: Sequence[ExecutionResult]) -> None:
        """Delete tasks with a retention of zero. A failure leaves them to the reaper."""
        try:
            self._state.store.delete_unretained(ended)
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
        for queue_name in state.store.selector.notify_on_release({result.claim.queue_name for result in ended}):
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
