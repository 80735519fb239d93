"""Which notifications sends and workflows make on PostgreSQL, and when."""

import time

import pytest
from django.db import connection, transaction

from horsies_django import RetryPolicy, Workflow, wait_for_event
from horsies_django.db import notifications, postgres
from horsies_django.db.notifications import BURST, MIN_INTERVAL
from horsies_django.models import Task
from tests.enqueue import jobs
from tests.jobs import limited
from tests.workflows import bodies


@pytest.fixture
def notified(transactional_db):
    """Listen on a separate connection; return a function that gives the payloads since its last call."""
    if connection.vendor != "postgresql":
        pytest.skip("no LISTEN here")
    import psycopg

    parameters = connection.get_connection_params()
    for key in ("cursor_factory", "context"):
        parameters.pop(key, None)
    with (
        psycopg.connect(**parameters, autocommit=True) as listener,
        psycopg.connect(**parameters, autocommit=True) as other,
    ):
        listener.execute("LISTEN horsies_tasks")

        def payloads():
            other.execute("NOTIFY horsies_tasks, 'the end'")
            found = []
            for notification in listener.notifies(timeout=20):
                if notification.payload == "the end":
                    return found
                if notification.payload != postgres.SUBSCRIBE:  # of a waiter of an earlier test
                    found.append(notification.payload)
            pytest.fail("the final notification did not arrive")

        yield payloads


@pytest.fixture
def long_interval(monkeypatch):
    """Allow one notification of each queue in this test, however slowly it runs."""
    monkeypatch.setattr(notifications, "MIN_INTERVAL", 600)
    monkeypatch.setattr(notifications, "BURST", 1)


def job_on_own_queue(request):
    """Return a task with a queue of its own: the limiter remembers the queues that this process has notified."""
    return jobs.triple.with_options(queue_name=request.node.name[:90])


def test_a_send_outside_a_transaction_notifies_its_queue(notified, request):
    job = job_on_own_queue(request)

    job.send(1)

    assert notified() == [f"-{job.queue_name}"]


@pytest.mark.parametrize(("task", "kind"), [(jobs.triple, "-"), (jobs.acoroutine, "~")])
def test_the_start_of_a_workflow_notifies_with_the_kind_of_its_node(notified, request, task, kind):
    queue = request.node.name[:90]

    Workflow("notifies", {"one": task.node(queue_name=queue)(a=1)}).start()

    assert notified() == [f"{kind}{queue}"]


def test_a_scheduled_send_is_notified_as_one_for_later(notified, request):
    job = job_on_own_queue(request)

    job.schedule(60, 1)

    assert notified() == [f"+{job.queue_name}"]


def test_tasks_that_wait_for_time_alone_are_notified_as_ones_for_later(notified, monkeypatch):
    monkeypatch.setattr(notifications, "MIN_INTERVAL", 0)

    limited.two_per_user.send_many([{"user": "a"}] * 3)
    full = notified()
    limited.four_an_hour.send_many([{"user": "a"}] * 6)
    spent = notified()

    assert ("+*" in full, "+*" in spent) == (False, True)


def test_sends_in_a_transaction_notify_once_after_its_commit(notified, request, long_interval):
    job = job_on_own_queue(request)

    with transaction.atomic():
        job.send(1)
        job.send(2)
        inside = notified()

    assert (inside, notified()) == ([], [f"-{job.queue_name}"])


def test_a_rolled_back_send_does_not_notify(notified, request):
    job = job_on_own_queue(request)

    with transaction.atomic():
        job.send(1)
        transaction.set_rollback(True)

    assert notified() == []


@pytest.mark.slow
@pytest.mark.sqlite
def test_send_many_notifies_once_for_2500_calls(notified, request):
    job = job_on_own_queue(request)

    job.send_many({"a": number} for number in range(2_500))

    assert notified() == [f"-{job.queue_name}"]


def test_a_burst_of_sends_notifies_a_limited_number_of_times_and_adds_no_statements(
    notified, request, monkeypatch, django_assert_num_queries
):
    monkeypatch.setattr(notifications, "MIN_INTERVAL", 600)
    job = job_on_own_queue(request)

    with django_assert_num_queries(2 * BURST):
        for number in range(2 * BURST):
            job.send(number)

    assert len(notified()) == BURST
    assert Task.objects.count() == 2 * BURST


def test_transactions_notify_no_more_often_than_their_interval(notified, request, monkeypatch):
    monkeypatch.setattr(notifications, "MIN_INTERVAL", 600)
    job = job_on_own_queue(request)

    for number in range(5):
        with transaction.atomic():
            job.send(number)

    assert len(notified()) == 1


def test_a_replayed_send_does_not_notify(notified, request):
    job = job_on_own_queue(request).with_options(unique_key="k")
    job.send(1)
    notified()
    time.sleep(2 * MIN_INTERVAL)  # so that only the existing row can prevent a notification

    again = job.send(2)

    assert again.replayed
    assert notified() == []


def test_the_items_of_a_map_notify_their_queue_once(notified, request, long_interval):
    queue_name = request.node.name[:90]
    items = wait_for_event("items")
    handle = Workflow("map", [items, bodies.echo.map(over=items, queue_name=queue_name)]).start()

    handle.send_event("items", [1, 2, 3])

    assert notified() == [f"-{queue_name}"]


@pytest.mark.parametrize(
    ("task", "condition", "kind"),
    [(jobs.triple, None, "-"), (jobs.acoroutine, None, "~"), (jobs.acoroutine, bodies.yes, "-")],
    ids=["function", "coroutine", "coroutine with a condition"],
)
def test_a_node_that_follows_notifies_with_the_kind_of_its_task(notified, request, task, condition, kind):
    queue = request.node.name[:90]
    event = wait_for_event("go")
    node = task.node(queue_name=queue, waits_for=[event], run_when=condition)(a=1)
    handle = Workflow("follows", [event, node]).start()

    handle.send_event("go")

    assert notified() == [f"{kind}{queue}"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_retry_of_a_subworkflow_is_notified_as_a_task_for_later(notified, request, drain):
    queue_name = request.node.name[:90]
    policy = RetryPolicy.fixed([60], auto_retry_for=["*"])
    leaf = bodies.Leaf.node(retry_policy=policy)(key="leaf", fails=1)
    Workflow("retry", [leaf], queue_name=queue_name).start()

    drain()

    assert f"+{queue_name}" in notified()


@pytest.fixture
def failing_notify(transactional_db):
    """Make each NOTIFY fail, as on a server whose notification queue is full."""
    if connection.vendor != "postgresql":
        pytest.skip("no NOTIFY here")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA full_queue")
        cursor.execute(
            "CREATE FUNCTION full_queue.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE program_limit_exceeded USING MESSAGE = 'too many notifications'; END $$"
        )
        cursor.execute("SET search_path TO full_queue, public, pg_catalog")
        yield
        cursor.execute("SET search_path TO DEFAULT")
        cursor.execute("DROP SCHEMA full_queue CASCADE")


def test_a_failed_notification_does_not_lose_its_task(failing_notify, request, caplog):
    job = job_on_own_queue(request)

    handle = job.send(1)
    with transaction.atomic():
        other = job.send(2)

    assert (handle.status(), other.status()) == ("PENDING", "PENDING")
    assert "too many notifications" in caplog.text


def test_a_failed_notification_lets_other_on_commit_callbacks_run(failing_notify, request, caplog):
    job, called = job_on_own_queue(request), []

    with transaction.atomic():
        job.send(1)
        transaction.on_commit(lambda: called.append("mine"))

    assert called == ["mine"]
    assert "too many notifications" in caplog.text


def test_the_notification_of_a_coroutine_task_has_its_own_prefix(notified, request):
    job = jobs.acoroutine.with_options(queue_name=request.node.name[:90])

    job.send(1)

    assert notified() == [f"~{job.queue_name}"]
