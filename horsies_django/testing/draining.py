"""Runs tasks in a test, as a worker would, in the calling thread and on its connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, Final, NoReturn
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.models import Q
from django.test import TestCase

from ..core.backends import all_backends
from ..core.exceptions import TaskFailed
from ..core.results import TaskError
from ..core.status import StepStatus, TaskStatus
from ..db.expressions import NowPlus
from ..db.now import Now
from ..enqueue.handle import TaskHandle
from ..models import Task, TaskStep
from ..models.claims import FOREVER
from ..models.filters import IS_AGGREGATING, IS_AWAITING, IS_RETRYING, IS_SCHEDULED
from ..models.operator_actions import ENGINE_TASK_PREFIX
from ..reaper.duties import DUTIES, run_pass
from ..schedules.scheduler import Scheduler
from ..worker.config import WorkerConfig
from ..worker.execution import ExecutionResult
from ..worker.inline import InlineWorker

#: Runs of tasks after which a drain gives up: a task that sends itself again would go on for ever.
MAX_RUNS: Final = 10_000

#: The duties of a reaper that a drain leaves out: they look after metrics and processes, and no task waits for them.
_OTHER_DUTIES: Final = {
    *("rolled up attempts", "deleted old heartbeats", "deleted old roll-ups", "deleted old error groups"),
    "forgot dead workers",
}
_DUTIES: Final = DUTIES.keys() - _OTHER_DUTIES


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain has run: the handles in the order of their first runs, and how many tasks are in which state now.

    ``counts`` has only states that occur. A task that waits for a retry counts as PENDING.
    """

    handles: list[TaskHandle[Any]] = field(default_factory=list)
    counts: Mapping[TaskStatus, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in self.counts.items()) or "nothing was due"


def drain(
    queues: Sequence[str] | None = None,
    scheduled: bool = False,
    retries: bool = False,
    schedules: bool = False,
    raise_errors: bool = False,
) -> Drained:
    """Run what is due, one task after the other in the order of claims, until nothing is.

    That includes what bodies, workflows, batches, groups and receivers of signals send meanwhile. Paused queues and
    exhausted limits hold tasks back as they do from a worker. ``queues`` names the queues to run, by default all.

    ``scheduled`` also runs tasks that are due later, and ends sleeps and the time-outs of waits. ``retries`` runs those
    that wait for another attempt. Both run in the order of their times and without waiting. ``schedules`` sends the due
    slots of schedules, and first stores those that code declares.

    A failure is stored as a worker stores it, and the drain goes on. With ``raise_errors`` it ends the drain: the first
    exception of a task that ends FAILED, or whose retry this drain would not run, is raised with its own traceback. A
    task that returned an error raises :class:`~horsies_django.exceptions.TaskFailed`.

    Raises ValueError for an unknown queue, RuntimeError after 10,000 runs.
    """
    names = (queues,) if isinstance(queues, str) else tuple(queues or ())
    later = [IS_SCHEDULED | IS_AGGREGATING | IS_AWAITING] * scheduled + [IS_RETRYING] * retries
    return _Drain(names, later, runs_retries=retries, raises=raise_errors).run(schedules=schedules)


def run(handle: TaskHandle[Any]) -> TaskHandle[Any]:
    """Run this task now, even if it is due later or its queue is paused; return its handle.

    Raises ValueError if it is not PENDING.
    """
    config = WorkerConfig.of(handle.backend)
    with _on_commit_callbacks(config.database), InlineWorker.open(config) as worker:
        ended = worker.run(handle.id)
    if ended is None:
        raise ValueError(f"{handle!r} is {handle.status() or 'not in the database'}; allowed: PENDING.")
    return handle


def run_next() -> TaskHandle[Any] | None:
    """Run the task that is next in the order of claims; return its handle, None if nothing is due."""
    for config in _configs(()):
        with _on_commit_callbacks(config.database), InlineWorker.open(config) as worker:
            ended = worker.run_next()
        if ended is not None:
            return _handle(ended)
    return None


adrain = sync_to_async(drain)
arun = sync_to_async(run)
arun_next = sync_to_async(run_next)


class _Drain:
    """One drain."""

    def __init__(self, queues: Sequence[str], later: Sequence[Q], *, runs_retries: bool, raises: bool) -> None:
        self._configs = _configs(queues)
        self._databases = {config.database: config for config in self._configs}
        self._queues = queues
        self._later = later
        self._runs_retries = runs_retries
        self._raises = raises
        self._handles: dict[tuple[str, UUID], TaskHandle[Any]] = {}
        self._ended: dict[tuple[str, UUID], TaskStatus] = {}
        self._runs = 0

    def run(self, *, schedules: bool) -> Drained:
        """Run what is due until nothing is."""
        schedulers = [Scheduler(config.options, config.backend) for config in self._configs] if schedules else []
        with ExitStack() as stack:
            workers = [stack.enter_context(InlineWorker.open(config)) for config in self._configs]
            for scheduler in schedulers:
                scheduler.sync()
            self._run_due(workers, schedulers)
            # What becomes due between the two is not brought forward.
            while self._bring_forward() or (self._later and self._run_due(workers, schedulers)):
                self._run_due(workers, schedulers)
        return Drained(list(self._handles.values()), self._counts())

    def _run_due(self, workers: Sequence[InlineWorker], schedulers: Sequence[Scheduler]) -> bool:
        """Run what is due now; return whether something was."""
        before = self._runs
        while True:
            with self._callbacks():
                for scheduler in schedulers:
                    while scheduler.run_once().fired:
                        pass
            if not any(self._run_next(worker) for worker in workers) and not self._has_reaped(workers):
                return self._runs > before

    def _run_next(self, worker: InlineWorker) -> bool:
        with self._callbacks():
            ended = worker.run_next()
        if ended is None:
            return False
        self._runs += 1
        if self._runs > MAX_RUNS:
            raise RuntimeError(f"drain() has run {MAX_RUNS:,} tasks; the last is {ended.claimed.task_name}.")
        self._record(ended)
        return True

    def _has_reaped(self, workers: Sequence[InlineWorker]) -> bool:
        """Run the duties of a reaper, such as deadlines; return whether a task is due after that, and was run."""
        with self._callbacks():
            for config in self._databases.values():
                run_pass(config.options, names=_DUTIES)
        return any(self._run_next(worker) for worker in workers)

    def _bring_forward(self) -> bool:
        """Make the first of the tasks that are due later due now; return whether there is one."""
        for database in self._databases if self._later else ():
            rows = Task.objects.using(database).pending().filter(reduce(or_, self._later))
            rows = rows.exclude(waits_for__isnull=False, enqueued_at__gt=NowPlus(FOREVER / 2))
            if self._queues:
                rows = rows.filter(queue_name__in=self._queues)
            first = rows.order_by("enqueued_at", "pk").values_list("pk", flat=True).first()
            if first is not None:
                waits = TaskStep.objects.using(database).filter(task=first, status=StepStatus.WAITING)
                waits.update(due_at=Now())
                return rows.filter(pk=first).update(enqueued_at=Now()) > 0
        return False

    def _record(self, ended: ExecutionResult) -> None:
        claimed, completion = ended.claimed, ended.completion
        key = claimed.backend, claimed.task_id
        if not claimed.task_name.startswith(ENGINE_TASK_PREFIX):
            self._handles.setdefault(key, _handle(ended))
        self._ended[key] = TaskStatus.COMPLETED if completion.is_success else TaskStatus.FAILED
        is_run_again = completion.delay is not None and self._runs_retries
        if self._raises and completion.error is not None and not is_run_again:
            _raise(ended)

    def _counts(self) -> dict[TaskStatus, int]:
        """Return how many of the tasks are in which state. A task without retention is deleted when it ends."""
        statuses: dict[tuple[str, UUID], TaskStatus] = {}
        for config in self._configs:
            keys = [key for backend, key in self._handles if backend == config.backend]
            rows = Task.objects.using(config.database).filter(pk__in=keys).values_list("pk", "status")
            statuses |= {(config.backend, key): TaskStatus(status) for key, status in rows}
        return dict(Counter(statuses.get(key, self._ended[key]) for key in self._handles))

    @contextmanager
    def _callbacks(self) -> Iterator[None]:
        with ExitStack() as stack:
            for database in self._databases:
                stack.enter_context(_on_commit_callbacks(database))
            yield


def _configs(queues: Sequence[str]) -> list[WorkerConfig]:
    """Return the configuration for each backend. Raises ValueError for a queue that no backend has."""
    backends = all_backends()
    changes: dict[str, Any] = {"max_tasks_per_child": None, "max_memory_mb": None, "prefetch": 0}
    for name in queues:
        if not any(name in backend.queues or not backend.queues for backend in backends):
            allowed = sorted({queue for backend in backends for queue in backend.queues})
            raise ValueError(f"There is no queue {name!r}; allowed: {', '.join(allowed)}.")
    served = {
        backend.alias: [name for name in queues if not backend.queues or name in backend.queues] for backend in backends
    }
    return [WorkerConfig.of(alias, queues=names, **changes) for alias, names in served.items() if names or not queues]


@contextmanager
def _on_commit_callbacks(database: str) -> Iterator[None]:
    """Run the callbacks that the block registers, which a ``TestCase`` would drop: a worker's transactions commit."""
    blocks = connections[database].atomic_blocks
    if not blocks or not all(getattr(block, "_from_testcase", False) for block in blocks):
        yield
        return
    with TestCase.captureOnCommitCallbacks(using=database, execute=True):
        yield


def _handle(ended: ExecutionResult) -> TaskHandle[Any]:
    return TaskHandle(ended.claimed.task_id, backend=ended.claimed.backend)


def _raise(ended: ExecutionResult) -> NoReturn:
    claimed, error = ended.claimed, ended.completion.error
    assert error is not None
    raised = ended.exception
    if raised is None:
        raised = TaskFailed(f"{error.code}: {error.message}", TaskError(error_code=error.code, message=error.message))
    raised.add_note(f"Raised by task {claimed.task_name} {claimed.task_id}, attempt {claimed.attempt}.")
    raise raised
