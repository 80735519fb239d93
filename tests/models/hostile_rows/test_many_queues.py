"""Made-up names of queues: each costs what its own tasks cost, and the other queues nothing."""

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

MADE_UP = 1_000
NORMAL = 100


def _make_up(count: int) -> set[str]:
    names = {f"made-up-{uuid.uuid4()}" for _ in range(count)}
    like = Task.objects.get(pk=tasks.noop.send().id)
    columns = {"task_name": like.task_name, "args": [], "kwargs": {}}
    Task.objects.bulk_create(
        Task(id=key, queue_name=name, **columns) for key, name in zip(uuid7s(count), names, strict=True)
    )
    return names


@pytest.mark.slow
def test_a_survey_sees_so_many_queues_and_the_next_those_that_come_after():
    names = _make_up(MADE_UP)
    Worker.objects.register("me", "me", "host", 1)
    survey = QueueScan(Task.objects.all(), Worker.objects.all(), "me", [False, True])

    seen = Counter[str]()
    for _ in range(1 + MADE_UP // QUEUES_PER_SCAN):
        surveyed = survey.run()
        assert len(surveyed.queues[0]) <= QUEUES_PER_SCAN
        assert surveyed.is_partial
        seen.update(queue.queue_name for queue in surveyed.queues[0])

    assert seen == Counter([*names, "default"])
    assert not surveyed.continues


@pytest.mark.slow
def test_a_normal_queue_is_drained_beside_many_that_were_made_up(drain):
    names = _make_up(MADE_UP)
    tasks.noop.send_many({} for _ in range(NORMAL))

    drain(processes=1, threads=8)

    done = Counter(Task.objects.filter(status=TaskStatus.COMPLETED).values_list("queue_name", flat=True))
    assert done == Counter([*names, *["default"] * (1 + NORMAL)])


def test_what_a_process_remembers_of_names_that_it_has_notified_of_is_bounded():
    for number in range(3 * MAX_REMEMBERED):
        wake_after_commit("default", f"made-up-{number}")

    assert len(_limiter._sent_at) <= MAX_REMEMBERED
