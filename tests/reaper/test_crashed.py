"""What becomes of the tasks that a crashed worker held."""

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Task
from horsies_django.reaper.crashed import TimeoutPolicy, recover_all
from tests.reaper.conftest import abandoned

pytestmark = pytest.mark.django_db(transaction=True)


def test_prefetched_tasks_of_a_crashed_worker_return_to_their_queue_without_an_attempt():
    rows = abandoned(2, TaskStatus.CLAIMED)

    assert recover_all(Task.objects.held_by("dead")) == len(rows)

    for row in rows:
        row.refresh_from_db()
        assert (row.status, row.claimed_at, row.claimed_by_worker_id) == (TaskStatus.PENDING, None, None)
        assert (row.attempt, row.retry_count, row.attempts.count()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("own_limit", "default", "code"),
    [
        (None, None, "WORKER_CRASHED"),
        (None, 60, "TASK_TIMEOUT"),
        (60, None, "TASK_TIMEOUT"),
        (60, 86_400, "TASK_TIMEOUT"),
        (86_400, 60, "WORKER_CRASHED"),
    ],
)
def test_a_task_over_its_time_limit_when_its_worker_ends_has_timed_out(own_limit, default, code):
    (row,) = abandoned(1, TaskStatus.RUNNING)
    Task.objects.update(timeout=own_limit)

    recover_all(Task.objects.held_by("dead"), TimeoutPolicy(default))

    row.refresh_from_db()
    assert (row.status, row.error_code) == (TaskStatus.FAILED, code)
