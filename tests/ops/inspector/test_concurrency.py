"""The inspector beside working workers, and on large tables."""

import threading

import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task, TaskAttempt
from horsies_django.ops.inspector import tasks
from tests.conftest import wait_until
from tests.jobs import tasks as jobs
from tests.ops.inspector.factories import some

pytestmark = pytest.mark.django_db(transaction=True)

#: Statements of a batch of 500: those for its ids, its states, the action and its checks. A delete first cancels tasks,
#: and also deletes their attempts and heartbeats.
STATEMENTS_OF_A_BATCH = {"run": 12, "delete": 28}


@pytest.mark.slow
def test_a_cancel_beside_a_worker_never_cancels_a_task_that_ran(worker):
    worker("--threads", "2")
    handles = jobs.noop.send_many({} for _ in range(1_500))
    done = 0
    for _ in range(20):
        done += tasks().matching(status=["pending", "claimed"]).cancel().done
    wait_until(lambda: not Task.objects.filter(status__in=["PENDING", "CLAIMED", "RUNNING"]).exists(), 60)

    cancelled = Task.objects.filter(status="CANCELLED")
    assert cancelled.count() == done
    assert Task.objects.filter(status="COMPLETED").count() == len(handles) - done
    assert not TaskAttempt.objects.filter(task__in=cancelled).exists()


@pytest.mark.slow
def test_concurrent_retries_of_the_same_tasks_retry_each_task_once():
    some(1_500, "failed")
    done = []

    def retry():
        done.append(tasks().matching(status="failed").retry())
        connections.close_all()

    threads = [threading.Thread(target=retry) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sum(report.done for report in done) == 1_500
    assert Task.objects.filter(status="PENDING", retry_count=0).count() == 1_500


@pytest.mark.slow
def test_a_delete_skips_a_running_task_without_waiting_for_it(worker, tmp_path):
    worker("--threads", "1")
    gate = tmp_path / "gate"
    handle = jobs.hold.send("k", str(gate))
    some(10, "scheduled")
    wait_until(lambda: handle.status() == "RUNNING")

    report = tasks().with_ids(Task.objects.values_list("pk", flat=True)).delete()

    assert (report.done, [left.id for left in report.skipped]) == (10, [handle.id])
    gate.touch()
    assert handle.value(30) == "k"


def many(count, **columns):
    """Send this many tasks and give them these columns, in few statements."""
    rows = Task.objects.filter(queue_name="new")
    jobs.noop.with_options(queue_name="new").send_many({} for _ in range(count))
    rows.update(**{"queue_name": "default", **columns})


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("action", STATEMENTS_OF_A_BATCH)
def test_an_action_on_a_large_selection_runs_in_bounded_batches(action):
    count = 20_000 if connection.vendor == "postgresql" else 5_000
    many(10_000, status="COMPLETED", completed_at=Now())
    many(count, enqueued_at=NowPlus(3_600), deferred=True, queue_name="bulk")
    many(10_000, status="COMPLETED", completed_at=Now())

    with CaptureQueriesContext(connection) as captured:
        report = getattr(tasks().matching(status="scheduled", queue="bulk"), action)()

    assert (report.done, report.left) == (count, 0)
    assert len(captured) <= STATEMENTS_OF_A_BATCH[action] * (count // 500 + 5)
    assert not [query for query in captured if "COUNT(" in query["sql"]]
    assert Task.objects.filter(status="COMPLETED").count() == 20_000


@pytest.mark.nightly
@pytest.mark.slow
def test_the_first_page_of_a_large_table_takes_few_statements():
    many(1, queue_name="rare")
    many(60_000 if connection.vendor == "postgresql" else 20_000)

    with CaptureQueriesContext(connection) as few:
        assert len(tasks().list()) == 30
    with CaptureQueriesContext(connection) as more:
        (found,) = tasks().list(queue="rare")

    assert found.queue == "rare"
    assert len(few) <= 3
    assert len(more) <= 12
