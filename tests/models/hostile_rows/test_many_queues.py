"""Many generated queue names add no cost to other queues."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from horsies_django import TaskStatus
from horsies_django.core.ids import uuid7s
from horsies_django.db.notifications import MAX_REMEMBERED, _limiter, wake_after_commit
from horsies_django.models import Task, Worker
from horsies_django.models.queue_scan import QUEUES_PER_SCAN, QueueScan
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 1_000
NORMAL = 100


def _send_to_generated_queues(count: int) -> set[str]:
    names = {f"generated-{uuid.uuid4()}" for _ in range(count)}
    template = Task.objects.get(pk=tasks.noop.send().id)
    columns = {"task_name": template.task_name, "args": [], "kwargs": {}}
    Task.objects.bulk_create(
        Task(id=key, queue_name=name, **columns) for key, name in zip(uuid7s(count), names, strict=True)
    )
    return names


@pytest.mark.slow
def test_successive_queue_scans_together_see_each_queue_once():
    names = _send_to_generated_queues(MANY)
    Worker.objects.register("me", "me", "host", 1)
    scan = QueueScan("default", "me", [False, True])

    seen = Counter[str]()
    for _ in range(1 + MANY // QUEUES_PER_SCAN):
        result = scan.run()
        assert len(result.queues[0]) <= QUEUES_PER_SCAN
        assert result.is_partial
        seen.update(queue.queue_name for queue in result.queues[0])

    assert seen == Counter([*names, "default"])
    assert not result.continues


@pytest.mark.slow
def test_a_queue_is_drained_beside_a_thousand_queues_of_one_task(drain):
    names = _send_to_generated_queues(MANY)
    tasks.noop.send_many({} for _ in range(NORMAL))

    drain(processes=1, threads=8)

    done = Counter(Task.objects.filter(status=TaskStatus.COMPLETED).values_list("queue_name", flat=True))
    assert done == Counter([*names, *["default"] * (1 + NORMAL)])


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_process_remembers_a_bounded_number_of_notified_queues():
    for number in range(3 * MAX_REMEMBERED):
        wake_after_commit("default", f"generated-{number}")

    assert len(_limiter._buckets) <= MAX_REMEMBERED
