"""``InlineWorker``: runs tasks one by one in the caller's thread and on its connection, without waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self
from uuid import UUID

from django.db import transaction

from ..db.now import Now
from ..enqueue.django_result import own_logging
from ..models import Limit, Task
from ..models.claim.query import ORDER
from ..models.release_blocked import release_waiting
from ..models.transitions import TaskQuerySet
from .attempt_log import keeping_attempt_logs
from .config import WorkerConfig
from .execution import ExecutionResult, NotStarted
from .executor import InlineExecutor
from .inbox import Inbox
from .producer import Producer
from .runner_state import RunnerState
from .slot_pool import SlotPool, StartAheadTuner


class InlineWorker:
    """Runs one task at a time, in the order of claims, through the producer of a real worker.

    Its pools have no slots but for the task that is to run: so it stores a result without claiming another task.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._inbox = Inbox()
        self._ended: list[ExecutionResult] = []
        self._pools = {
            is_async: SlotPool(is_async, 0, 0, InlineExecutor(self._on_result), StartAheadTuner(1, 0))
            for is_async in (False, True)
        }
        self._state = RunnerState(config, config.new_worker_id(), self._inbox, list(self._pools.values()))
        self._store = self._state.store
        self._producer = Producer(self._state)

    @classmethod
    @contextmanager
    def open(cls, config: WorkerConfig) -> Iterator[Self]:
        """Register a worker for the length of the block."""
        worker = cls(config)
        keeping_logs = keeping_attempt_logs(config.options.attempt_log, worker._state.worker.worker_id)
        with own_logging(), keeping_logs, worker._producer.registered():
            yield worker

    def run_next(self) -> ExecutionResult | None:
        """Run the task that is next in the order of claims, and store its result; None if none can be claimed."""
        refused: set[str] = set()  # queues that are paused or at a limit
        has_released = False
        while True:
            next_up = self._due().exclude(queue_name__in=refused).order_by(*ORDER)
            row = next_up.values_list("queue_name", "is_async").first()
            if row is not None:
                queue_name, is_async = row
                if (result := self._run_next_of(queue_name, self._pools[is_async])) is not None:
                    return result
                refused.add(queue_name)
            elif has_released:
                return None
            else:
                with self._store.transaction():
                    self._store.tasks.make_due_claimable()
                release_waiting(self._config.database, Limit.objects.using(self._config.database).due_keys())
                has_released = True

    def run(self, task_id: UUID) -> ExecutionResult | None:
        """Run this task now, whatever it waits for, and store its result; None if it is not PENDING."""
        row = self._tasks().filter(pk=task_id)
        row.pending().update(enqueued_at=Now(), deferred=False, blocked=False, group_key=None, waits_for=None)
        pool = self._pools[bool(row.values_list("is_async", flat=True).first())]
        with transaction.atomic(using=self._config.database):
            tasks = row.claim(self._state.worker.worker_id, start=1, is_async=pool.is_async)
        self._producer.submit(pool, tasks)
        self._store_results()
        return self._take_ended()

    def _run_next_of(self, queue_name: str, pool: SlotPool) -> ExecutionResult | None:
        pool.slots = 1
        pool.mark_ready(queue_name)
        while pool.queues and not self._ended and self._state.may_claim:
            self._producer.run_once()
        pool.slots = 0
        self._store_results()
        return self._take_ended()

    def _store_results(self) -> None:
        while self._state.is_holding:
            self._producer.run_once()

    def _take_ended(self) -> ExecutionResult | None:
        return self._ended.pop() if self._ended else None

    def _on_result(self, item: ExecutionResult | NotStarted) -> None:
        if isinstance(item, ExecutionResult):
            self._ended.append(item)
        self._inbox.put(item)

    def _due(self) -> TaskQuerySet:
        due = self._tasks().pending().filter(deferred=False).due()
        queues: Sequence[str] = self._config.queues
        due = due.filter(queue_name__in=queues) if queues else due
        return due.exclude(queue_name__in=self._config.exclude_queues)

    def _tasks(self) -> TaskQuerySet:
        return Task.objects.using(self._config.database)
