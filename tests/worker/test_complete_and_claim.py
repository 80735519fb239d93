"""The tick of a worker: one statement on PostgreSQL, four in one transaction on other databases."""

from datetime import timedelta

import pytest
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskAttempt
from horsies_django.models.claim.complete_and_claim import compile_for
from tests.jobs import tasks
from tests.worker.test_fencing import RUNNER, claim_one, ended

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tick():
    return compile_for(Task.objects.all(), RUNNER, is_async=False)


def send(queue, count, priority=0):
    sender = tasks.noop.with_options(queue_name=queue, priority=priority)
    return [handle.id for handle in sender.send_many({} for _ in range(count))]


def test_an_end_that_is_stored_twice_leaves_one_attempt(tick):
    handle = tasks.noop.send()
    end = ended(claim_one())

    for _ in range(2):
        tick.run([end], 0, ())

    assert handle.status() == TaskStatus.COMPLETED
    assert TaskAttempt.objects.get().worker_id == RUNNER.worker_id


def test_an_attempt_keeps_when_its_task_could_have_started(tick):
    tasks.noop.send()
    due_at = timezone.now() - timedelta(minutes=10)
    Task.objects.update(enqueued_at=due_at)

    tick.run([ended(claim_one())], 0, ())

    assert TaskAttempt.objects.get().due_at == due_at


def test_the_end_of_a_cancelled_task_leaves_no_attempt(tick):
    handle = tasks.noop.send()
    claimed = claim_one()
    assert handle.cancel(include_running=True)

    tick.run([ended(claimed)], 0, ())

    assert handle.status() == TaskStatus.CANCELLED
    assert not TaskAttempt.objects.exists()


def test_the_first_tasks_of_several_queues_are_claimed_and_started(tick):
    a, b, urgent, _ = send("a", 2), send("b", 2), send("b", 1, priority=5), send("c", 1, priority=9)

    claims = tick.run([], 4, ["a", "b"])

    assert {claim.task_id for claim in claims} == {*urgent, *a, b[0]}
    assert set(Task.objects.active().values_list("pk", "status", "attempt", "claimed_by_worker_id")) == {
        (claim.task_id, TaskStatus.RUNNING, 1, RUNNER.worker_id) for claim in claims
    }


@pytest.mark.parametrize("queues", [["a"], ["a", "b"]])
def test_no_more_tasks_of_a_queue_are_claimed_than_its_limit_allows(tick, queues):
    first, *_ = send("a", 3)
    others = send("b", 1)

    claims = tick.run([], 3, queues, {"a": 1})

    assert {claim.task_id for claim in claims} == {first, *others[: len(queues) - 1]}


@pytest.mark.parametrize(("room", "queues"), [(0, ["default"]), (1, [])])
def test_nothing_is_claimed_without_room_or_queues(tick, room, queues):
    tasks.noop.send()

    assert tick.run([], room, queues) == []
    assert not Task.objects.active().exists()
