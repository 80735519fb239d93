"""The retention in the row of a queue, which may change at run time."""

from datetime import timedelta

import pytest
from django.db.models import F

from horsies_django.models import Queue, Task
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def kept():
    """Return how long each task is kept after its end, by queue and state."""
    return {
        (task.queue_name, task.status): task.kept_until and round((task.kept_until - task.finished_at).total_seconds())
        for task in Task.objects.all()
    }


def test_a_queue_row_overrides_the_settings_and_a_task_overrides_the_row(drain):
    Queue.objects.named("short").set(retention="1h")
    Queue.objects.named("ever").set(retention={"completed": "forever", "failed": None})
    Queue.objects.named("brief").set(retention={"failed": "2h"})
    for queue in ("short", "ever", "brief", "other"):
        tasks.add.using(queue_name=queue).send(1)
        tasks.fail.using(queue_name=queue).send()
    tasks.noop.with_options(queue_name="own", retention="2h").send()
    Queue.objects.named("own").set(retention="1h")

    drain()

    day = timedelta(days=1).total_seconds()
    assert kept() == {
        ("short", "COMPLETED"): 3_600,
        ("short", "FAILED"): 30 * day,
        ("ever", "COMPLETED"): None,
        ("ever", "FAILED"): None,
        ("brief", "COMPLETED"): 7 * day,
        ("brief", "FAILED"): 7_200,
        ("other", "COMPLETED"): 7 * day,
        ("other", "FAILED"): 30 * day,
        ("own", "COMPLETED"): 7_200,
    }


def test_a_queue_retention_of_0_applies_to_completed_and_cancelled_tasks(drain):
    Queue.objects.named("fleeting").set(retention={"completed": 0, "cancelled": 0})
    tasks.add.using(queue_name="fleeting").send(1)
    drain()
    assert not Task.objects.exists()

    tasks.add.using(queue_name="fleeting").send(1)
    Task.objects.all().cancel()

    assert Task.objects.filter(kept_until__lte=F("cancelled_at") + timedelta(seconds=1)).count() == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_running_worker_applies_a_changed_queue_retention(worker):
    worker("-v0", "--poll-interval", "0.2")
    tasks.add.send(1).get(timeout=20)
    Queue.objects.named("default").set(retention="1h")

    def applies_to_new_tasks():
        handle = tasks.add.send(1)
        handle.get(timeout=20)
        task = Task.objects.get(pk=handle.id)
        return (task.kept_until - task.completed_at) < timedelta(hours=2)

    wait_until(applies_to_new_tasks)
