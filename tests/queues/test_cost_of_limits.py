"""What a limit costs a queue, side by side with none."""

import pytest
from django.db import connection
from django.db.models import Max, Min

from horsies_django.models import Queue, Task, TaskAttempt
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 10_000


def rate(manage, most):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE horsies_tasks, horsies_task_attempts CASCADE")
    Queue.objects.named("default").set(max_concurrency=most)
    tasks.noop.send_many({} for _ in range(COUNT))
    process = manage("horsies_worker", "--drain", "--processes", "2", "--threads", "64", "-v0")
    assert process.wait(120) == 0, process.output
    assert Task.objects.completed().count() == TaskAttempt.objects.count() == COUNT
    ran = TaskAttempt.objects.aggregate(first=Min("started_at"), last=Max("finished_at"))
    return COUNT / (ran["last"] - ran["first"]).total_seconds()


@pytest.mark.slow
@pytest.mark.alone
def test_with_a_limit_that_does_not_bind_a_queue_drains_at_60_percent_of_its_rate_at_least(manage):
    if connection.vendor != "postgresql":
        return  # the figure is PostgreSQL's
    pairs = [(rate(manage, None), rate(manage, 1_000)) for _ in range(3)]
    free, limited = map(max, zip(*pairs, strict=True))  # the best of each: a slow one says something of the machine
    print(f"{free:,.0f} tasks a second without a limit, {limited / free:.0%} of that with one")

    assert limited / free >= 0.6


@pytest.mark.slow
def test_nothing_is_lost_where_a_limit_binds_two_runners(manage):
    if connection.vendor == "postgresql":
        print(f"{rate(manage, 16):,.0f} tasks a second, 16 at once")
