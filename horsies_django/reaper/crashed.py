"""Recover the tasks of a worker that crashed or stopped sending heartbeats."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from django.db.models import Exists, OuterRef

from ..core.results import OperationalCode, OutcomeCode
from ..core.retry import retrying_policy
from ..core.status import AttemptOutcome, TaskStatus
from ..db.expressions import SecondsUntil
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..enqueue import send_signals
from ..models import TaskStep, Worker
from ..models.attempt import AttemptError
from ..models.claims import Completion, WorkerInfo, error_result
from ..models.release_blocked import release_after_commit
from ..models.transitions import TaskQuerySet
from ..workflows import gateway
from .batches import in_batches

logger = logging.getLogger("horsies_django.reaper")

_CRASHED: Final = "The worker died, or stopped sending heartbeats, while the task ran."
_TIMED_OUT: Final = "The task ran longer than its time limit and stopped only when its process was killed."


class StaleTask(NamedTuple):
    """The columns of a locked CLAIMED or RUNNING task whose worker is gone."""

    task_id: UUID
    claim: int
    status: str
    worker_id: str | None
    retry_count: int
    max_retries: int
    retry_policy: Any
    timeout: float | None
    attempt: int
    started_in: float | None
    limit_key: str | None
    has_progress: bool  # it has recorded something under this claim


class Evidence(Protocol):
    """What a supervisor knows about the tasks of a crashed worker beyond their rows."""

    def has_begun(self, stale: StaleTask) -> bool:
        """Whether the task's function may have started; if not, the task is requeued without using an attempt."""

    def is_over_limit(self, stale: StaleTask) -> bool:
        """Whether the task had exceeded its time limit when its process ended."""

    def began_at(self, stale: StaleTask) -> float:
        """When the task's function began, on this host's monotonic clock in seconds; 0 if that is unknown."""

    @property
    def is_stopped(self) -> bool:
        """Whether the worker ended these tasks because it was asked to stop; that uses no retry."""


@dataclass(frozen=True, slots=True)
class TimeoutPolicy:
    """Evidence for a worker that lived until now: tasks that exceeded their time limit end with TASK_TIMEOUT.

    ``default`` is the limit in seconds of tasks that set none.
    """

    default: float | None
    is_stopped: bool = False

    def has_begun(self, stale: StaleTask) -> bool:
        """Return True: any task may have started."""
        return True

    def is_over_limit(self, stale: StaleTask) -> bool:
        """Whether the task has been RUNNING for longer than its limit."""
        limit = self.default if stale.timeout is None else stale.timeout
        return limit is not None and stale.started_in is not None and -stale.started_in >= limit

    def began_at(self, stale: StaleTask) -> float:
        """Return 0: only the row says it."""
        return 0.0


def recover_all(tasks: TaskQuerySet, evidence: Evidence | None = None) -> int:
    """Recover ``tasks`` batch by batch; return how many were recovered."""
    return sum(recover(tasks, evidence))


def recover(
    tasks: TaskQuerySet, evidence: Evidence | None = None, may_act: Callable[[], bool] = lambda: True
) -> Iterator[int]:
    """Recover ``tasks`` batch by batch; yield how many of each were recovered.

    CLAIMED tasks go back to PENDING, because they never started. RUNNING tasks are retried after the delay of their
    retry policy if the policy lists ``WORKER_CRASHED`` (``TASK_TIMEOUT`` for a task over its limit) and retries are
    left; otherwise they become FAILED. A retry is charged unless the worker was asked to stop. A task that has made
    progress under its claim is retried in any case, at once and uncharged.

    Without ``evidence``, every task counts as started and within its time limit.
    """
    return in_batches(tasks, partial(_recover, evidence=evidence), may_act=may_act)


def _recover(tasks: TaskQuerySet, evidence: Evidence | None) -> int:
    columns = (
        "pk",
        "claim",
        "status",
        "claimed_by_worker_id",
        "retry_count",
        "max_retries",
        "retry_policy",
        "timeout",
        "attempt",
        SecondsUntil("started_at"),
        "limit_key",
        Exists(TaskStep.objects.using(tasks.db).progress().filter(task=OuterRef("pk"), claim=OuterRef("claim"))),
    )
    tasks, nodes = gateway.lock_unless_locked(tasks)
    stale = [StaleTask(*row) for row in tasks.lock().values_list(*columns)]
    for worker_id, unstarted in _by_worker(task for task in stale if task.status == TaskStatus.CLAIMED):
        tasks.all_rows().release(unstarted, worker_id)
    running = [task for task in stale if task.status == TaskStatus.RUNNING]
    if evidence:
        for worker_id, not_begun in _by_worker(task for task in running if not evidence.has_begun(task)):
            tasks.all_rows().revert_start(not_begun, worker_id)
        running = [task for task in running if evidence.has_begun(task)]
    workers = Worker.objects.using(tasks.db).in_bulk({task.worker_id or "" for task in stale})
    groups: dict[tuple[str, AttemptOutcome, bool, bool], list[Completion]] = defaultdict(list)
    for task in running:
        outcome, ended = _completion(task, evidence)
        groups[task.worker_id or "", outcome, ended.delay is not None, ended.is_charged].append(ended)
        next_state = "fails" if ended.delay is None else "retries"
        logger.warning("task lost id=%s worker=%s: it %s", task.task_id, task.worker_id, next_state)
    for (worker_id, outcome, is_retried, is_charged), ends in groups.items():
        worker = workers.get(worker_id)
        runner = WorkerInfo(worker_id, worker.hostname if worker else "", worker.pid if worker else None)
        if is_retried:
            tasks.all_rows().retry_later(ends, runner, outcome, is_charged=is_charged)
        else:
            tasks.all_rows().fail(ends, runner, outcome)
    gateway.advance_locked(tasks.db, nodes)
    wake_after_commit(tasks.db, ANY_QUEUE)
    release_after_commit(tasks.db, [task.limit_key for task in stale])
    send_signals.crashed_after_commit(tasks.db, {task.task_id: task.attempt for task in running})
    return len(stale)


def _by_worker(stale: Iterable[StaleTask]) -> Iterable[tuple[str, list[StaleTask]]]:
    grouped: dict[str, list[StaleTask]] = defaultdict(list)
    for task in stale:
        grouped[task.worker_id or ""].append(task)
    return grouped.items()


def _completion(stale: StaleTask, evidence: Evidence | None) -> tuple[AttemptOutcome, Completion]:
    code, message, outcome = OperationalCode.WORKER_CRASHED.value, _CRASHED, AttemptOutcome.WORKER_FAILURE
    if evidence and evidence.is_over_limit(stale):
        code, message, outcome = OutcomeCode.TASK_TIMEOUT.value, _TIMED_OUT, AttemptOutcome.FAILED
    policy = retrying_policy(stale, code)
    delay = policy.delay(stale.retry_count + 1) if policy else None
    is_charged = not (evidence and evidence.is_stopped) or outcome is AttemptOutcome.FAILED
    if stale.has_progress and outcome is AttemptOutcome.WORKER_FAILURE:
        delay, is_charged = 0.0, False  # a crash after progress is no failed attempt
    result = error_result(code, message, {"worker_id": stale.worker_id})
    began = evidence.began_at(stale) if evidence else 0.0
    ended = Completion(stale.task_id, stale.claim, result, AttemptError(code, message), delay, began=began)
    return outcome, ended._replace(is_charged=is_charged, has_records=stale.has_progress)
