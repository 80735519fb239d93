"""What becomes of the tasks of a worker that is dead, or looks dead."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from ..core.results import OperationalCode, OutcomeCode
from ..core.retry import RetryPolicy
from ..core.status import AttemptOutcome, TaskStatus
from ..db.expressions import SecondsUntil
from ..db.notifications import ANY_QUEUE, wake_after_commit
from ..enqueue import send_signals
from ..models import Worker
from ..models.attempt import AttemptError
from ..models.claims import Completion, WorkerInfo, error_result
from ..models.release_blocked import release_after_commit
from ..models.transitions import TaskQuerySet
from ..workflows import gateway
from .batches import BatchResult, SkippedRows, fail_unreadable, run_all_batches, run_batch

logger = logging.getLogger("horsies_django.reaper")

_CRASHED: Final = "The worker died, or stopped beating, while the task ran."
_TIMED_OUT: Final = "The body ran longer than its time limit, and only the end of its process has stopped it."


class StaleTask(NamedTuple):
    """A task of a worker that is gone, as it was locked."""

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


class Evidence(Protocol):
    """What is known of the bodies of a worker that is gone, beside what its tasks' rows say."""

    def has_begun(self, lost: StaleTask) -> bool:
        """Whether the body may have begun; if not, its task goes back with no attempt burnt."""

    def is_over_limit(self, lost: StaleTask) -> bool:
        """Whether the body had run longer than its time limit when it ended."""

    @property
    def is_stopped(self) -> bool:
        """Whether the worker was told to stop and ended these bodies itself: no retry is charged for that."""


@dataclass(frozen=True, slots=True)
class TimeoutPolicy:
    """The worker lived until now: what has run longer than its time limit, or else ``default``, is charged for that."""

    default: float | None
    is_stopped: bool = False

    def has_begun(self, lost: StaleTask) -> bool:
        """Any of them may have."""
        return True

    def is_over_limit(self, lost: StaleTask) -> bool:
        """Whether the task has been RUNNING for longer than its limit."""
        limit = self.default if lost.timeout is None else lost.timeout
        return limit is not None and lost.started_in is not None and -lost.started_in >= limit


def recover_all(tasks: TaskQuerySet, evidence: Evidence | None = None) -> int:
    """Recover ``tasks`` batch by batch; return how many there were."""
    return run_all_batches(lambda refused: recover_batch(tasks, refused, evidence))


def recover_batch(
    tasks: TaskQuerySet,
    refused: SkippedRows,
    evidence: Evidence | None = None,
    may_act: Callable[[], bool] = lambda: True,
) -> BatchResult:
    """Recover one batch of ``tasks``.

    What was CLAIMED goes back to PENDING, for its body never began. What was RUNNING is retried if its policy
    lists ``WORKER_CRASHED`` (``TASK_TIMEOUT`` for one over its limit) and has retries left, with the policy's
    delay, else it is FAILED. That costs a retry, unless the worker was told to stop.

    Without ``evidence`` every body may have begun, and none was over its limit.
    """
    return run_batch(tasks, partial(_recover, evidence=evidence), refused, may_act=may_act, give_up=fail_unreadable)


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
    )
    tasks, nodes = gateway.lock_unless_locked(tasks)
    lost = [StaleTask(*row) for row in tasks.lock().values_list(*columns)]
    for worker_id, unstarted in _by_worker(one for one in lost if one.status == TaskStatus.CLAIMED):
        tasks.all_rows().release(unstarted, worker_id)
    running = [one for one in lost if one.status == TaskStatus.RUNNING]
    if evidence:
        for worker_id, untouched in _by_worker(one for one in running if not evidence.has_begun(one)):
            tasks.all_rows().revert_start(untouched, worker_id)
        running = [one for one in running if evidence.has_begun(one)]
    known = Worker.objects.using(tasks.db).in_bulk({one.worker_id or "" for one in lost})
    groups: dict[tuple[str, AttemptOutcome, bool], list[Completion]] = defaultdict(list)
    for one in running:
        outcome, ended = _completion(one, is_over_limit=bool(evidence and evidence.is_over_limit(one)))
        groups[one.worker_id or "", outcome, ended.delay is not None].append(ended)
        fate = "fails" if ended.delay is None else "retries"
        logger.warning("task lost id=%s worker=%s: it %s", one.task_id, one.worker_id, fate)
    for (worker_id, outcome, is_retried), ends in groups.items():
        worker = known.get(worker_id)
        runner = WorkerInfo(worker_id, worker.hostname if worker else "", worker.pid if worker else None)
        if is_retried:
            is_charged = not (evidence and evidence.is_stopped) or outcome is AttemptOutcome.FAILED
            tasks.all_rows().retry_later(ends, runner, outcome, is_charged=is_charged)
        else:
            tasks.all_rows().fail(ends, runner, outcome)
    gateway.advance_locked(tasks.db, nodes)
    wake_after_commit(tasks.db, ANY_QUEUE)
    release_after_commit(tasks.db, [one.limit_key for one in lost])
    send_signals.crashed_after_commit(tasks.db, {one.task_id: one.attempt for one in running})
    return len(lost)


def _by_worker(lost: Iterable[StaleTask]) -> Iterable[tuple[str, list[StaleTask]]]:
    grouped: dict[str, list[StaleTask]] = defaultdict(list)
    for one in lost:
        grouped[one.worker_id or ""].append(one)
    return grouped.items()


def _completion(lost: StaleTask, *, is_over_limit: bool) -> tuple[AttemptOutcome, Completion]:
    code, message, outcome = OperationalCode.WORKER_CRASHED.value, _CRASHED, AttemptOutcome.WORKER_FAILURE
    if is_over_limit:
        code, message, outcome = OutcomeCode.TASK_TIMEOUT.value, _TIMED_OUT, AttemptOutcome.FAILED
    policy = RetryPolicy.read(lost.retry_policy, lost.task_id) if lost.retry_count < lost.max_retries else None
    delay = policy.delay(lost.retry_count + 1) if policy and policy.covers(code) else None
    result = error_result(code, message, {"worker_id": lost.worker_id})
    return outcome, Completion(lost.task_id, lost.claim, result, AttemptError(code, message), delay)
