"""The writer: what one tick of a pump says to the database."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Final
from uuid import UUID

from django.db import Error

from ..db.errors import is_refusal
from ..models.claims import ClaimedTask, Ended
from ..workflows.gateway import AdvanceFailed
from .claim_budget import ClaimBudget
from .config import WorkerConfig
from .execution_result import ExecutionResult
from .result_buffer import ResultBuffer
from .slot_pool import SlotPool
from .store import WorkerStore, latest
from .tick import Tick

logger = logging.getLogger("horsies_django.worker")

#: A prefetched task that has waited for its slot this many stale thresholds is given back, well beaten for or not.
MAX_STALE_THRESHOLDS: Final = 10


class TickTransaction:
    """Writes ticks. It remembers whose turn is next, and what is ``in_doubt``: committed, with no answer."""

    def __init__(
        self,
        config: WorkerConfig,
        store: WorkerStore,
        pools: Sequence[SlotPool],
        buffer: ResultBuffer,
        budget: ClaimBudget,
    ) -> None:
        self._config = config
        self._store = store
        self._pools = pools
        self._turns = list(pools)
        self._buffer = buffer
        self._budget = budget
        self._longest_wait = MAX_STALE_THRESHOLDS * config.options.recovery.claimed_stale_threshold_ms / 1_000
        self.in_doubt = False

    def doubt(self) -> None:
        """Something may have been committed that nobody here knows of."""
        self.in_doubt = True

    def beat(self) -> Tick:
        """Write the beat of an idle worker, which is one statement and needs no transaction."""
        is_dismissed = self._store.heartbeat(self._pools)
        self.in_doubt = self._store.holds_anything()
        return Tick(beat=True, is_dismissed=is_dismissed)

    def write(self, *, is_beat_due: bool) -> Tick:
        """Write all that there is to write, and claim."""
        batch = self._buffer.batch()
        tick = Tick(beat=is_beat_due, doubted=self.in_doubt)
        nodes = [outcome for outcome in batch if outcome.claim.workflow_id is not None]
        noted = [outcome.execution for outcome in batch if outcome.execution.progress is not None]
        is_all_well = all(outcome.completion.is_success for outcome in batch)
        is_rare = self.in_doubt or nodes or noted or tick.beat or not is_all_well or self._has_more_than_exchanges()
        ends: list[Ended] = []
        try:
            with self._store.transaction() if is_rare else nullcontext():
                tick.blocked = self._store.lock_workflows(nodes) if nodes else []
                tick.stored = [outcome for outcome in batch if outcome not in tick.blocked] if tick.blocked else batch
                ends = latest([outcome.completion for outcome in tick.stored if not outcome.is_stored])
                successes = [end for end in ends if end.is_success]
                if is_rare:
                    self._write_rarities(tick)
                with self._store.pipeline() if nodes else nullcontext():
                    self._store.note_progress(noted)
                    self._store.store([end for end in ends if not end.is_success])
                    if nodes:  # what follows from their ends is to be claimed with the rest
                        successes = self._store_successes(successes)
                        fresh = self._advance([outcome for outcome in nodes if outcome not in tick.blocked], tick)
                for pool in self._turns if is_rare else self._next_turn():
                    if self._fill(pool, tick, successes):
                        successes = []
                self._store_successes(successes)
                if nodes:
                    self._notify_others(fresh, tick)
        except (Error, AdvanceFailed) as error:
            self.in_doubt = True  # the answer may be lost, and the transaction may be there all the same
            if not ends or (isinstance(error, Error) and not is_refusal(error)):
                raise
            logger.exception("%d results can't be stored together; storing them one by one", len(ends))
            self._store.store_singly(ends)
            return Tick(stored=tick.stored)
        self.in_doubt = False
        return tick

    def pass_turn(self, pool: SlotPool, found: int, *, is_cooled: bool) -> None:
        """Next time, begin with the lane for which something came last; but two that are busy take turns."""
        self._turns.remove(pool)
        self._turns.insert(0 if found and is_cooled else len(self._turns), pool)

    def known(self) -> list[ClaimedTask]:
        """Every claim that is in this runner's hands."""
        running = [execution.claim for pool in self._pools for execution in pool.running.values()]
        prefetched = [claim for pool in self._pools for claim in pool.prefetched]
        return [*running, *prefetched, *(outcome.claim for outcome in self._buffer.all)]

    def _store_successes(self, successes: Sequence[Ended]) -> list[Ended]:
        """Store successes without a claim; return those that are left, which are none."""
        if successes:
            self._store.complete_and_claim(self._pools[0], successes, 0)
        return []

    def _advance(self, nodes: Sequence[ExecutionResult], tick: Tick) -> Mapping[UUID, tuple[str, bool]]:
        """Do what follows from the ends of nodes' tasks; return the tasks that can be claimed with that."""
        fresh, tick.limit_keys = self._store.advance(nodes)
        for pool in self._pools:
            for queue, is_async in set(fresh.values()):
                if pool.is_async == is_async and self._config.serves(queue):
                    pool.mark_ready(queue)
        return fresh

    def _notify_others(self, fresh: Mapping[UUID, tuple[str, bool]], tick: Tick) -> None:
        """Tell other workers of those of these tasks that this one has not claimed at once."""
        mine = {claim.task_id for _, started in tick.started for claim in started}
        self._store.notify_others(pool for task_id, pool in fresh.items() if task_id not in mine)

    def _write_rarities(self, tick: Tick) -> None:
        if self.in_doubt or tick.beat:  # what was in doubt may have been committed later still
            self._store.hand_back_unknown(self.known())
        if tick.beat:
            tick.is_dismissed = self._store.heartbeat(self._pools)

    def _next_turn(self) -> Sequence[SlotPool]:
        """One lane at a time: what has been claimed for it begins before the next one is asked for."""
        return [pool for pool in self._turns if pool.has_work and self._budget.room_in(pool)][:1]

    def _has_more_than_exchanges(self) -> bool:
        return any(pool.withdrawn or pool.prefetched or pool.prefetch for pool in self._pools)

    def _fill(self, pool: SlotPool, tick: Tick, successes: Sequence[Ended]) -> bool:
        """Start and claim for one lane, or give back what it holds if no more is to begin.

        Return whether ``successes`` were stored with that.
        """
        if pool.withdrawn:
            tick.handed_back.append((pool, self._store.hand_back(pool.withdrawn)))
        if not self._budget.may_claim or pool.check_stalled(self._longest_wait):
            if pool.prefetched:
                tick.prefetched.append((pool, self._store.release(list(pool.prefetched))))
            return False
        if startable := pool.startable:
            tick.started.append((pool, self._store.start(startable)))
            tick.prefetched.append((pool, list(pool.prefetched)[len(startable) :]))
            return False
        room = self._budget.room_in(pool)
        if not (pool.has_work and room):
            return False
        if pool.prefetch:
            started, prefetched = self._store.prefetch(pool)
            tick.prefetched.append((pool, [*pool.prefetched, *self._store.readable(prefetched)]))
        else:
            started, prefetched = self._store.complete_and_claim(pool, successes, room), []
        tick.claimed += len(started) + len(prefetched)
        if len(started) + len(prefetched) < room:
            tick.cooled.append(pool)
        tick.started.append((pool, self._store.readable(started)))
        return not pool.prefetch
