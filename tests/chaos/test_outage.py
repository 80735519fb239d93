"""Outages of the database."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import Error, connection

from horsies_django import TASK_TERMINAL_STATES, TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.chaos import jobs
from tests.conftest import wait_until
from tests.jobs import tasks

#: Thresholds shorter than the bodies and an outage, but longer than a brief pause of a worker.
SHORT = {"TEST_STALE_MS": "3000", "TEST_HEARTBEAT_MS": "400", "TEST_CHECK_MS": "200"}


def when_reachable(condition: Callable[[], Any]) -> Callable[[], Any]:
    """Return the condition, made false while the database is unreachable."""

    def reachable_condition() -> Any:
        try:
            return condition()
        except Error:
            connection.close()
            return None

    return reachable_condition


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "outage", "thresholds"),
    [(1_000, 20.0, {}), (100, 8.0, SHORT)],
    ids=["20 s among 1000 bodies", "longer than every threshold"],
)
def test_an_outage_costs_a_live_worker_no_task(own_cluster, start, count, outage, thresholds):
    worker = start("horsies_worker", "--async-slots", str(count), "--threads", "1", **thresholds)
    start("horsies_worker", "--async-slots", "1", "--threads", "1", "--queues", "other", **thresholds)
    jobs.nap.send_many({"seconds": 4 + (outage + 4) * number / count} for number in range(count))
    wait_until(lambda: Task.objects.filter(attempt=1).count() == count, what="all bodies have begun")

    own_cluster.stop("immediate")
    connection.close()
    back_at = time.monotonic() + outage
    wait_until(lambda: time.monotonic() >= back_at, limit=outage + 20)  # the outage is the test
    assert worker.process.poll() is None, worker.output
    own_cluster.start()

    wait_until(when_reachable(lambda: not Task.objects.pending().exists() and not Task.objects.active().exists()), 60)
    assert Counter(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED"): count}
    assert Counter(Task.objects.values_list("status", "attempt")) == {(TaskStatus.COMPLETED, 1): count}
    ran_in = {result["ok"] for result in Task.objects.values_list("result", flat=True)}
    assert ran_in == set(TaskAttempt.objects.values_list("pid", flat=True)), (
        "another process ended a body than the one that began it"
    )


@pytest.mark.slow
def test_a_body_that_outlasts_every_threshold_keeps_its_task(worker):
    worker("--processes", "2", runners=2, **SHORT)
    worker(**SHORT)
    naps = jobs.nap.send_many({"seconds": 5} for _ in range(8))
    works = jobs.work.send_many({"key": str(number), "seconds": 5} for number in range(8))

    wait_until(lambda: Task.objects.filter(status__in=TASK_TERMINAL_STATES).count() == 16, limit=40)

    assert {handle.status() for handle in (*naps, *works)} == {TaskStatus.COMPLETED}
    assert Counter(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED"): 16}


@pytest.mark.slow
def test_a_body_gets_a_new_connection_if_the_idle_one_has_died(worker):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no server that could end a connection")
    worker("--threads", "1", DJANGO_SETTINGS_MODULE="tests.chaos.unchecked_settings")
    assert tasks.attempt.send().value(timeout=20) == 1

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    assert tasks.attempt.send().value(timeout=20) == 1
