"""The machine without its rules: the real rows and their model, compared after every step.

The database's clock can't be moved, so to let time pass, every stored time moves back instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID

from django.db.models import DateTimeField, F
from django.utils import timezone
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from horsies_django import RetryPolicy
from horsies_django.enqueue.task import HorsiesTask
from horsies_django.models import Heartbeat, Queue, Task, TaskAttempt, Worker
from horsies_django.models.claims import ClaimedTask, Completion, WorkerInfo
from horsies_django.worker import run_task
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.execution import Execution
from horsies_django.worker.executor import InlineExecutor
from horsies_django.worker.inbox import Inbox
from horsies_django.worker.slot_pool import SlotPool, StartAheadTuner
from horsies_django.worker.store import WorkerStore, latest

from . import jobs
from .model import LIVE, Model, Row
from .strategies import QUEUES, WORKERS, Pick, Send, sends
from .table import TOLERANCE, compare

#: Makes a time that is due in the model due by the real clock too.
MARGIN = timedelta(milliseconds=2)


class Taken(NamedTuple):
    """A claim, and the worker that believes to hold it."""

    worker: str
    claim: ClaimedTask

    @property
    def key(self) -> tuple[UUID, int]:
        return self.claim.task_id, self.claim.claim


class Base(RuleBasedStateMachine):
    """The task table, its workers, and helpers to select rows and claims."""

    @initialize(sends=st.lists(sends, min_size=1, max_size=4))
    def begin(self, sends: list[Send]) -> None:
        for table in (TaskAttempt, Heartbeat, Task, Worker, Queue):
            table.objects.all()._raw_delete(using="default")  # skips the search for cascades
        for name in QUEUES:
            Queue.objects.create(name=name)
        self.model = Model()
        self.began_at = time.monotonic()
        self.taken: list[Taken] = []
        self.config = WorkerConfig.of("default")
        for name in WORKERS:
            self.store_of(name).register()
        for send in sends:
            self.add(send)

    @invariant()
    def agree(self) -> None:
        # On a machine that stands still, the real times move away from the model's: such an example tells nothing.
        assume(time.monotonic() - self.began_at < TOLERANCE.total_seconds() / 2)
        compare(self.model)

    def add(self, send: Send) -> None:
        holder = self.model.holder(send.unique_key)
        handle = self.task(send).send()
        assert handle.replayed is (holder is not None)
        if holder is not None:
            assert handle.id == holder
            return
        codes, delays = send.policy
        self.model.send(
            handle.id,
            send.delay,
            send.good_for,
            priority=send.priority,
            queue=send.queue,
            unique_key=send.unique_key,
            codes=codes,
            delays=delays,
            timeout=send.timeout,
            retention=send.retention,
        )

    def move_time(self, seconds: int) -> None:
        by = timedelta(seconds=seconds) + MARGIN
        for table in (Task, Heartbeat, TaskAttempt):
            names = [entry.name for entry in table._meta.concrete_fields if isinstance(entry, DateTimeField)]
            changes: dict[str, Any] = {name: F(name) - by for name in names}
            cast("Any", table).objects.update(**changes)
        self.model.now += seconds

    def store_of(self, worker: str) -> WorkerStore:
        """Return a new store each time, because a store caches the paused queues for a second."""
        return WorkerStore(self.config, self.runner(worker))

    def runner(self, worker: str) -> WorkerInfo:
        return WorkerInfo(worker, "host", 1)

    def pool(self, slots: int, prefetch: int) -> SlotPool:
        return SlotPool(
            False, slots, prefetch, executor=InlineExecutor(Inbox().put), start_ahead=StartAheadTuner(slots, 0)
        )

    def run_of(self, taken: Taken) -> Execution:
        return Execution(taken.claim, self.config.options, self.runner(taken.worker))

    def run_body(self, taken: Taken, how: str) -> Completion:
        jobs.outcome[0] = how
        return run_task.run_task(self.run_of(taken)).completion

    def task(self, send: Send) -> HorsiesTask[[], object]:
        codes, delays = send.policy
        good_for = None if send.good_for is None else timedelta(seconds=send.good_for - 1)  # past when due in the model
        policy: dict[str, Any] = {}  # without a policy a body may still raise Retry
        if codes:
            policy["retry_policy"] = RetryPolicy.fixed(delays, auto_retry_for=codes, jitter=False)
        return jobs.act.with_options(
            run_after=timedelta(seconds=send.delay) if send.delay else None,
            good_until=None if good_for is None else timezone.now() + good_for,
            **policy,
            priority=send.priority,
            queue_name=send.queue,
            unique_key=send.unique_key,
            timeout=send.timeout,
            retention=send.kept,
        )

    def write(self, worker: str, ends: list[Completion]) -> None:
        store = self.store_of(worker)
        ends = latest(ends)
        with store.transaction():
            store.save([end for end in ends if not end.is_success])
            store.complete_and_claim(self.pool(1, 0), [end for end in ends if end.is_success], 0)

    def rows(self, indexes: Iterable[int]) -> list[UUID]:
        """Return the ids of the picked rows, counted from the latest."""
        latest = list(reversed(self.model.rows))
        return [latest[index % len(latest)] for index in indexes]

    def statuses(self) -> set[str]:
        return {row.status for row in self.model.rows.values()}

    def live(self) -> int:
        return sum(row.status in LIVE for row in self.model.rows.values())

    def held_claims(self, *statuses: str) -> list[Taken]:
        """Return the claims that still hold a row in one of these states."""
        return [each for each in self.taken if (row := self.row_of(each)) and row.status in (statuses or LIVE[1:])]

    def lost_claims(self) -> list[Taken]:
        """Return the claims that no longer hold their row."""
        return [each for each in self.taken if each.claim.task_id in self.model.rows and not self.row_of(each)]

    def row_of(self, taken: Taken) -> Row | None:
        row = self.model.rows.get(taken.claim.task_id)
        return row if row and row.claim == taken.claim.claim and row.status in LIVE[1:] else None

    def holders(self) -> list[str]:
        return sorted({each.worker for each in self.held_claims()})

    def by_worker(self, which: Iterable[Pick], *statuses: str) -> list[tuple[str, list[Taken]]]:
        """Return the picked claims in the order they were made, by the worker that believes to hold them."""
        held, found = self.held_claims(*statuses), {}
        for pick in which:
            if claims := (held if pick.fits else self.taken)[::-1]:
                each = claims[pick.place % len(claims)]
                found[each.key] = each
        picked = [each for each in self.taken if each.key in found]
        return [(name, claims) for name in WORKERS if (claims := [each for each in picked if each.worker == name])]
