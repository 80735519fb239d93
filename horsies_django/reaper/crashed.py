"""What becomes of the tasks of a worker that is dead, or looks dead."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from ..compat import task_finished
from ..framework import send_finished
from ..models import Worker
from ..models.attempt import AttemptError
from ..models.claims import Ended, Runner, error_result
from ..models.transitions import BATCH, TaskQuerySet
from ..results import OperationalCode
from ..retries import RetryPolicy
from ..states import AttemptOutcome, TaskStatus
from ..waking import ANY_QUEUE, wake_after_commit

_MESSAGE: Final = "The worker died, or stopped beating, while the task ran."


def recover_crashed(tasks: TaskQuerySet) -> int:
    """Recover one batch of ``tasks`` and return how many there were; 0 when none is left.

    What was CLAIMED goes back to PENDING, for its body never began (S3-08). What was RUNNING is retried if its policy
    lists ``WORKER_CRASHED`` and has retries left (S3-09), with the policy's delay (S4-31), else it is FAILED (S3-10).
    """
    with transaction.atomic(using=tasks.db):
        columns = ("pk", "claim", "status", "claimed_by_worker_id", "retry_count", "max_retries", "retry_policy")
        rows = list(tasks._lock().values_list(*columns)[:BATCH])
        if not rows:
            return 0
        unstarted = [_ended(*row) for row in rows if row[2] == TaskStatus.CLAIMED]
        if unstarted:
            tasks.model.objects.using(tasks.db).release(unstarted)
        by_worker: dict[str, list[Ended]] = defaultdict(list)
        for row in rows:
            if row[2] == TaskStatus.RUNNING:
                by_worker[row[3] or ""].append(_ended(*row))
        known = Worker.objects.using(tasks.db).in_bulk(list(by_worker))
        for worker_id, ends in by_worker.items():
            worker = known.get(worker_id)
            runner = Runner(worker_id, worker.hostname if worker else "", worker.pid if worker else None)
            _end(tasks, ends, runner)
        wake_after_commit(tasks.db, ANY_QUEUE)
        transaction.on_commit(partial(_announce, tasks, rows), using=tasks.db, robust=True)
    return len(rows)


def _announce(tasks: TaskQuerySet, rows: list[Any]) -> None:
    """Tell of those that ended, where anyone listens."""
    if task_finished.receivers:
        ended = tasks.model.objects.using(tasks.db).filter(pk__in=[row[0] for row in rows], status=TaskStatus.FAILED)
        send_finished(ended)


def _end(tasks: TaskQuerySet, ends: list[Ended], runner: Runner) -> None:
    rows = tasks.model.objects.using(tasks.db)
    if retried := [end for end in ends if end.retry_in is not None]:
        rows.retry_later(retried, runner, AttemptOutcome.WORKER_FAILURE)
    if failed := [end for end in ends if end.retry_in is None]:
        rows.fail(failed, runner, AttemptOutcome.WORKER_FAILURE)


def _ended(
    key: UUID, claim: int, status: str, worker_id: str | None, retry_count: int, max_retries: int, stored: Any
) -> Ended:
    code = OperationalCode.WORKER_CRASHED
    policy = RetryPolicy.read(stored, key) if retry_count < max_retries else None
    retry_in = policy.delay(retry_count + 1) if policy and policy.covers(code) else None
    result = error_result(code, _MESSAGE, {"worker_id": worker_id})
    return Ended(key, claim, result, AttemptError(code, _MESSAGE), retry_in)
