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
from .claim_budget import Allowance
from .config import Plan
from .execution_result import Outcome
from .result_buffer import Outbox
from .slots import Lane
from .store import Books, latest
from .tick import Tick

logger = logging.getLogger("horsies_django.worker")

#: A prefetched task that has waited for its slot this many stale thresholds is given back, well beaten for or not.
PATIENCE: Final = 10


class Writer:
    """Writes ticks. It remembers whose turn is next, and what is ``in_doubt``: committed, with no answer."""

    def __init__(self, plan: Plan, books: Books, lanes: Sequence[Lane], outbox: Outbox, allowance: Allowance) -> None:
        self._plan = plan
        self._books = books
        self._lanes = lanes
        self._turns = list(lanes)
        self._outbox = outbox
        self._allowance = allowance
        self._longest_wait = PATIENCE * plan.options.recovery.claimed_stale_threshold_ms / 1_000
        self.in_doubt = False

    def doubt(self) -> None:
        """Something may have been committed that nobody here knows of."""
        self.in_doubt = True

    def beat(self) -> Tick:
        """Write the beat of an idle worker, which is one statement and needs no transaction."""
        is_dismissed = self._books.beat(self._lanes)
        self.in_doubt = self._books.holds_anything()
        return Tick(beat=True, is_dismissed=is_dismissed)

    def write(self, *, is_beat_due: bool) -> Tick:
        """Write all that there is to write, and claim."""
        batch = self._outbox.batch()
        tick = Tick(beat=is_beat_due, doubted=self.in_doubt)
        nodes = [outcome for outcome in batch if outcome.claim.workflow_id is not None]
        noted = [outcome.run for outcome in batch if outcome.run.progress is not None]
        is_all_well = all(outcome.ended.is_success for outcome in batch)
        is_rare = self.in_doubt or nodes or noted or tick.beat or not is_all_well or self._has_more_than_exchanges()
        ends: list[Ended] = []
        try:
            with self._books.transaction() if is_rare else nullcontext():
                tick.blocked = self._books.blocked(nodes) if nodes else []
                tick.stored = [outcome for outcome in batch if outcome not in tick.blocked] if tick.blocked else batch
                ends = latest([outcome.ended for outcome in tick.stored if not outcome.is_stored])
                successes = [end for end in ends if end.is_success]
                if is_rare:
                    self._write_rarities(tick)
                with self._books.pipeline() if nodes else nullcontext():
                    self._books.note_progress(noted)
                    self._books.store([end for end in ends if not end.is_success])
                    if nodes:  # what follows from their ends is to be claimed with the rest
                        successes = self._store(successes)
                        fresh = self._advance([outcome for outcome in nodes if outcome not in tick.blocked], tick)
                for lane in self._turns if is_rare else self._next_turn():
                    if self._fill(lane, tick, successes):
                        successes = []
                self._store(successes)
                if nodes:
                    self._tell_others(fresh, tick)
        except (Error, AdvanceFailed) as error:
            self.in_doubt = True  # the answer may be lost, and the transaction may be there all the same
            if not ends or (isinstance(error, Error) and not is_refusal(error)):
                raise
            logger.exception("%d results can't be stored together; storing them one by one", len(ends))
            self._books.store_singly(ends)
            return Tick(stored=tick.stored)
        self.in_doubt = False
        return tick

    def pass_turn(self, lane: Lane, found: int, *, is_cooled: bool) -> None:
        """Next time, begin with the lane for which something came last; but two that are busy take turns."""
        self._turns.remove(lane)
        self._turns.insert(0 if found and is_cooled else len(self._turns), lane)

    def known(self) -> list[ClaimedTask]:
        """Every claim that is in this runner's hands."""
        running = [run.claim for lane in self._lanes for run in lane.running.values()]
        prefetched = [claim for lane in self._lanes for claim in lane.prefetched]
        return [*running, *prefetched, *(outcome.claim for outcome in self._outbox.all)]

    def _store(self, successes: Sequence[Ended]) -> list[Ended]:
        """Store successes without a claim; return those that are left, which are none."""
        if successes:
            self._books.exchange(self._lanes[0], successes, 0)
        return []

    def _advance(self, nodes: Sequence[Outcome], tick: Tick) -> Mapping[UUID, tuple[str, bool]]:
        """Do what follows from the ends of nodes' tasks; return the tasks that can be claimed with that."""
        fresh, tick.limit_keys = self._books.advance(nodes)
        for lane in self._lanes:
            for queue, is_async in set(fresh.values()):
                if lane.is_async == is_async and self._plan.serves(queue):
                    lane.heat(queue)
        return fresh

    def _tell_others(self, fresh: Mapping[UUID, tuple[str, bool]], tick: Tick) -> None:
        """Tell other workers of those of these tasks that this one has not claimed at once."""
        mine = {claim.task_id for _, started in tick.started for claim in started}
        self._books.tell_others(lane for task_id, lane in fresh.items() if task_id not in mine)

    def _write_rarities(self, tick: Tick) -> None:
        if self.in_doubt or tick.beat:  # what was in doubt may have been committed later still
            self._books.hand_back_unknown(self.known())
        if tick.beat:
            tick.is_dismissed = self._books.beat(self._lanes)

    def _next_turn(self) -> Sequence[Lane]:
        """One lane at a time: what has been claimed for it begins before the next one is asked for."""
        return [lane for lane in self._turns if lane.hot and self._allowance.room_in(lane)][:1]

    def _has_more_than_exchanges(self) -> bool:
        return any(lane.withdrawn or lane.prefetched or lane.prefetch for lane in self._lanes)

    def _fill(self, lane: Lane, tick: Tick, successes: Sequence[Ended]) -> bool:
        """Start and claim for one lane, or give back what it holds if no more is to begin.

        Return whether ``successes`` were stored with that.
        """
        if lane.withdrawn:
            tick.handed_back.append((lane, self._books.hand_back(lane.withdrawn)))
        if not self._allowance.may_claim or lane.stall(self._longest_wait):
            if lane.prefetched:
                tick.prefetched.append((lane, self._books.release(list(lane.prefetched))))
            return False
        if startable := lane.startable:
            tick.started.append((lane, self._books.start(startable)))
            tick.prefetched.append((lane, list(lane.prefetched)[len(startable) :]))
            return False
        room = self._allowance.room_in(lane)
        if not (lane.hot and room):
            return False
        if lane.prefetch:
            started, prefetched = self._books.claim(lane)
            tick.prefetched.append((lane, [*lane.prefetched, *self._books.readable(prefetched)]))
        else:
            started, prefetched = self._books.exchange(lane, successes, room), []
        tick.claimed += len(started) + len(prefetched)
        if len(started) + len(prefetched) < room:
            tick.cooled.append(lane)
        tick.started.append((lane, self._books.readable(started)))
        return not lane.prefetch
