"""A reaper and a worker that change the same row: only the first one succeeds."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from django.db import connections, transaction
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.models import Task, TaskAttempt
from horsies_django.models.attempt import AttemptError
from horsies_django.models.claims import Completion, WorkerInfo
from tests.jobs import tasks
from tests.workflows.runs import reap

pytestmark = pytest.mark.django_db(transaction=True)

POLICY = RetryPolicy.fixed([60, 60, 60], auto_retry_for=["WORKER_CRASHED", "BROKEN"], jitter=False)
COUNT = 30


def stale_runs(count):
    """Claim tasks for a worker that has been silent for an hour and is about to report their ends."""
    tasks.noop.with_options(retry_policy=POLICY).send_many({} for _ in range(count))
    with transaction.atomic():
        claims = Task.objects.claim("silent", start=count)
    Task.objects.update(started_at=timezone.now() - timedelta(hours=1))
    return claims


def schedule_retries(claims):
    result = '{"err":{"error_code":"BROKEN","message":"","data":null}}'
    ends = [Completion(one.task_id, one.claim, result, AttemptError("BROKEN", ""), 60.0) for one in claims]
    with transaction.atomic():
        Task.objects.retry_later(ends, WorkerInfo("silent", "host", 1))


def complete(claims):
    with transaction.atomic():
        Task.objects.complete(
            [Completion(one.task_id, one.claim, '{"ok":1}') for one in claims], WorkerInfo("silent", "host", 1)
        )


@pytest.mark.parametrize("first", ["the worker", "the reaper"])
def test_a_worker_and_a_reaper_schedule_only_one_retry(first):
    claims = stale_runs(2)
    acts = [lambda: schedule_retries(claims), reap]

    for act in acts if first == "the worker" else reversed(acts):
        act()

    assert set(Task.objects.values_list("status", "retry_count", "attempt")) == {(TaskStatus.PENDING, 1, 1)}
    codes = {"BROKEN" if first == "the worker" else "WORKER_CRASHED"}
    assert set(TaskAttempt.objects.values_list("attempt", "error_code", "will_retry")) == {(1, *codes, True)}
    assert TaskAttempt.objects.count() == 2


@pytest.mark.parametrize(
    ("end", "status"),
    [(schedule_retries, TaskStatus.PENDING), (complete, TaskStatus.COMPLETED)],
    ids=["18: a retry", "17: a completion"],
)
def test_a_worker_and_a_reaper_that_race_end_each_task_once(end, status):
    claims = stale_runs(COUNT)
    together = Barrier(2)

    def act(action):
        try:
            together.wait(60)
            action()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(act, action) for action in (lambda: end(claims), reap)]:
            future.result()

    assert TaskAttempt.objects.count() == TaskAttempt.objects.values("task").distinct().count() == COUNT
    assert not Task.objects.active().exists()
    for row in Task.objects.prefetch_related("attempts"):
        (attempt,) = row.attempts.all()
        assert (row.status, row.retry_count) == ((TaskStatus.PENDING, 1) if attempt.will_retry else (status, 0))
