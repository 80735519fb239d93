"""The order of claims between queues: by the priority of tasks, strict, and weighted."""

from collections import Counter

import pytest
from django.db.models import Max, Min

from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Task, TaskAttempt
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def send(counts, **options):
    for queue, count in counts.items():
        tasks.noop.with_options(queue_name=queue, **options).send_many({} for _ in range(count))


def begun():
    """Return the queue of each task in the order in which the tasks began."""
    return list(TaskAttempt.objects.order_by("started_at", "pk").values_list("task__queue_name", flat=True))


def drained(manage, *flags, limit=60):
    process = manage("horsies_worker", "--drain", "-v0", *flags)
    assert process.wait(limit) == 0, process.output
    assert not Task.objects.pending().exists()


def spans():
    """Return when the first and the last task of each queue was claimed; a thread may begin one later."""
    rows = Task.objects.values_list("queue_name").annotate(Min("claimed_at"), Max("claimed_at"))
    return {queue: (first, last) for queue, first, last in rows}


def shares(count):
    first = Counter(begun()[:count])
    return {queue: first[queue] / count for queue in sorted(first)}


def set_weights(**weights):
    for queue, weight in weights.items():
        Queue.objects.named(queue).set(weight=weight)


@pytest.mark.slow
def test_weighted_order_shares_claims_by_queue_weight(manage):
    set_weights(a=6, b=3, c=1)
    send({"c": 150, "b": 350, "a": 650})

    drained(manage, "--order", "weighted", "--threads", "4", "--start-ahead", "0")

    found = shares(1_000)
    assert found == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.05), found


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_weights_of_6_3_1_give_60_30_10_percent_of_10_000_tasks(manage, processes):
    set_weights(a=6, b=3, c=1)
    send({"c": 1_500, "b": 3_500, "a": 6_500})

    drained(manage, "--order", "weighted", "--processes", processes, "--threads", "16", limit=240)

    found = shares(10_000)
    print(found)
    assert found == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.05), found


def test_an_empty_queue_leaves_its_share_to_the_other_queues(drain):
    set_weights(a=100, b=1)
    send({"a": 3, "b": 60})

    drain(order="weighted", threads=4)

    assert Task.objects.completed().count() == 63


@pytest.mark.slow
def test_strict_order_begins_a_queue_once_the_higher_ones_are_empty(manage):
    Queue.objects.named("high").set(priority=5)
    Queue.objects.named("low").set(priority=-5)
    send({"low": 100}, priority=100)
    send({"middle": 100, "high": 100})

    drained(manage, "--order", "strict", "--threads", "4", "--start-ahead", "0")

    found = spans()
    assert found["high"][1] <= found["middle"][0], found
    assert found["middle"][1] <= found["low"][0], found


def send_busy_and_old_tasks():
    send({"busy": 400}, priority=50)
    send({"old": 5})
    Task.objects.filter(queue_name="old").update(enqueued_at=NowPlus(-60))


@pytest.mark.slow
def test_by_default_only_task_priority_orders_claims(manage):
    send_busy_and_old_tasks()

    drained(manage, "--threads", "4", "--start-ahead", "0")

    found = spans()
    assert found["busy"][1] <= found["old"][0], found
    assert Counter(begun()) == {"busy": 400, "old": 5}
