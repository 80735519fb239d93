"""The transaction of a tick: store what has ended, send a heartbeat, start what was prefetched, and claim.

Most ticks only store successes and claim replacements: one statement on PostgreSQL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from django.db import Error

from ..db.errors import is_permanent_error
from ..models.claims import ClaimedTask, Completion, TaskRoute
from ..models.worker import WorkerRequest
from ..workflows.gateway import AdvanceFailed
from .execution import ExecutionResult
from .runner_state import RunnerState
from .slot_pool import SlotPool
from .store import latest

logger = logging.getLogger("horsies_django.worker")

#: A prefetched task that waits for its slot longer than this many stale thresholds is released, heartbeats or not.
MAX_STALE_THRESHOLDS: Final = 10


@dataclass(slots=True)
class Tick:
    """What one tick has committed. The producer applies it to the state in memory."""

    began_at: float = field(default_factory=lambda: time.monotonic())  # as in Execution
    stored: Sequence[ExecutionResult] = ()
    limit_keys: Collection[str] = ()  # limits that may have room now, of nodes that ended without running
    postponed: Sequence[ExecutionResult] = ()  # another transaction has locked them or their workflows
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


class TickTransaction:
    """Writes ticks. It reads the state of the runner, and changes nothing but which queues may hold work."""

    def __init__(self, state: RunnerState) -> None:
        self._state = state
        self._store = state.store
        self._pools = state.pools
        self._max_wait = MAX_STALE_THRESHOLDS * state.options.recovery.claimed_stale_after

    def write_heartbeat(self) -> Tick:
        """Write the heartbeat of an idle worker, without a transaction."""
        request, is_in_doubt = self._store.idle_heartbeat(is_quiet=self._state.is_quiet)
        return Tick(has_heartbeat=True, request=request, is_in_doubt=is_in_doubt)

    def write(self, pools: Sequence[SlotPool]) -> Tick:
        """Store all results that are ready, and claim for ``pools`` in their order.

        Queues that get tasks of workflows meanwhile are marked as ready: these are claimed with the rest. Raises
        django.db.Error or :class:`~..workflows.gateway.AdvanceFailed`; the transaction may have committed even then.
        """
        is_heartbeat_due = time.monotonic() >= self._state.next_heartbeat
        is_in_doubt = self._state.is_in_doubt
        batch = self._state.results.batch()
        tick = Tick(has_heartbeat=is_heartbeat_due, has_resolved_doubt=is_in_doubt)
        nodes = [result for result in batch if result.claim.workflow_id is not None]
        noted = [result.execution for result in batch if result.execution.progress is not None]
        are_successes = all(result.completion.is_success for result in batch)
        is_one_statement = not (
            is_in_doubt
            or nodes
            or noted
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
                ends = latest([result.completion for result in tick.stored if not result.is_stored])
                successes = [end for end in ends if end.is_success]
                if is_in_doubt or is_heartbeat_due:  # a transaction in doubt may commit later still
                    self._store.hand_back_unknown(self._state.known_claims)
                if is_heartbeat_due:
                    tick.request = self._store.heartbeat(self._pools, is_quiet=self._state.is_quiet)
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
                for pool in self._next_pool(pools) if is_one_statement else pools:
                    if self._fill(pool, tick, successes):
                        successes = []
                self._store_successes(successes)
                if nodes:
                    self._notify_others(new_tasks, tick)
        except (Error, AdvanceFailed) as error:
            if not ends or (isinstance(error, Error) and not is_permanent_error(error)):
                raise
            logger.exception("results refused, storing them one by one count=%d", len(ends))
            self._store.save_one_by_one(ends)
            return Tick(stored=tick.stored, is_in_doubt=True)
        return tick

    def _has_more_than_claims(self) -> bool:
        return any(pool.withdrawn or pool.prefetched or pool.prefetch for pool in self._pools)

    def _next_pool(self, pools: Sequence[SlotPool]) -> Sequence[SlotPool]:
        """One pool at a time: what is claimed for it starts before the next pool's claim."""
        return [pool for pool in pools if pool.queues and self._state.room_in(pool)][:1]

    def _store_successes(self, successes: Sequence[Completion]) -> None:
        """Store successes without a claim."""
        if successes:
            self._store.complete_and_claim(self._pools[0], successes, 0)

    def _notify_others(self, new_tasks: Mapping[UUID, TaskRoute], tick: Tick) -> None:
        """Notify other workers of the new tasks that this one has not claimed at once."""
        mine = {claim.task_id for _, started in tick.started for claim in started}
        self._store.notify_others(kind for task_id, kind in new_tasks.items() if task_id not in mine)

    def _fill(self, pool: SlotPool, tick: Tick, successes: Sequence[Completion]) -> bool:
        """Start and claim tasks for one pool, or release what it holds if nothing more may start.

        Return whether ``successes`` were stored by the claim.
        """
        if pool.withdrawn:
            tick.handed_back.append((pool, self._store.hand_back(pool.withdrawn)))
        is_stalled = self._state.may_claim and pool.is_overdue(self._max_wait)
        if is_stalled:
            tick.stalled.append(pool)
        if is_stalled or not self._state.may_claim:
            if pool.prefetched:
                tick.prefetched.append((pool, self._store.release(list(pool.prefetched))))
            return False
        if startable := pool.startable:
            tick.started.append((pool, self._store.start(startable)))
            tick.prefetched.append((pool, list(pool.prefetched)[len(startable) :]))
            return False
        room = self._state.room_in(pool)
        if not (pool.queues and room):
            return False
        free = min(room, max(0, pool.free - len(pool.prefetched))) if pool.prefetch else room
        started, prefetched = self._store.complete_and_claim(pool, successes, free), list[ClaimedTask]()
        if len(started) == free < room:
            prefetched = self._store.complete_and_claim(pool, (), room - free, starts=False)
            tick.prefetched.append((pool, [*pool.prefetched, *prefetched]))
        tick.claimed += len(started) + len(prefetched)
        if len(started) + len(prefetched) < room:
            tick.emptied.append(pool)
        tick.started.append((pool, started))
        return True
