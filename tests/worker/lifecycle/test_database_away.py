"""Terminated connections, a database that refuses connections, and missing notifications."""

import itertools
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.db.backends.signals import connection_created
from django.utils import timezone

from horsies_django import TaskStatus, Workflow, sleep
from horsies_django.core.compat import task_started
from horsies_django.core.ids import uuid7
from horsies_django.core.status import TASK_LIVE_STATES
from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.lifecycle import jobs
from tests.workflows.bodies import Silent

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connections that a server could end"),
]

OURS = "datname = current_database() AND pid <> pg_backend_pid()"


def ask(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def end_connections(which="true"):
    """Terminate all other connections; return how many there were."""
    return len(ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS} AND ({which})"))


#: A runner LISTENs on the connection of its producer.
PRODUCERS = "application_name IN (SELECT left('horsies ' || id, 63) FROM horsies_workers)"


def listeners():
    return ask(f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND {PRODUCERS}")[0][0]


@contextmanager
def connections_refused():
    """Refuse all connections to the database except this test's."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    outside = connection.copy()
    outside.settings_dict = {**outside.settings_dict, "NAME": "postgres"}
    try:
        with outside.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
            try:
                end_connections()
                yield
            finally:
                cursor.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
    finally:
        outside.close()


@contextmanager
def terminated_before(number):
    """Terminate the connection of a body's thread before its ``number``-th SELECT; yield the SELECTs that have failed.

    Only one thread loses its connection.
    """
    numbers, failed = itertools.count(1), []

    def terminate(execute, sql, params, many, context):
        if sql.startswith("SELECT") and next(numbers) == number:
            failed.append(sql)
            with suppress(psycopg.Error):
                context["connection"].connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return execute(sql, params, many, context)

    def watch(connection, **_):
        if threading.current_thread() is not threading.main_thread():  # which is the producer's
            connection.execute_wrappers.append(terminate)

    connection_created.connect(watch)
    yield failed
    connection_created.disconnect(watch)


def ignore(**_):
    """Receive a signal."""


@pytest.fixture
def receiver():
    """Have ``task_started`` be sent, for which the worker reads the task."""
    task_started.connect(ignore)
    yield
    task_started.disconnect(ignore)


def send_workflow():
    return Workflow("engine", {"nap": sleep(0), "subworkflow": Silent.node()()}).start()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "attempts"),
    [
        (tasks.attempt_ids.send, 2),
        (tasks.acontext.send, 1),
        (jobs.attempt_atomically.send, 1),
        (send_workflow, 1),
    ],
    ids=["function", "coroutine", "atomic", "workflow"],
)
def test_a_connection_lost_before_the_body_begins_charges_no_attempt(drain, receiver, send, attempts):
    for number in itertools.count(1):
        send()
        with terminated_before(number) as failed:
            drain()
        if not failed:
            break

    for _ in range(9):  # what was handed back waits for a second, and what follows it may wait again
        Task.objects.pending().update(enqueued_at=timezone.now())
        drain()

    assert number > 2
    assert set(Task.objects.values_list("status", "attempt")) == {(TaskStatus.COMPLETED, attempts)}


@pytest.mark.slow
def test_an_idle_worker_survives_a_database_outage(worker):
    process = worker("--processes", "2", runners=2)
    tasks.write.send("before").get(timeout=20)
    pids = set(Worker.objects.values_list("pid", flat=True))

    with connections_refused():
        back_at = time.monotonic() + 2
        wait_until(lambda: time.monotonic() > back_at)  # the outage lasts until then
        tasks.write.send_many({"key": str(number)} for number in range(30))
        assert Task.objects.pending().count() == 30

    wait_until(lambda: Task.objects.completed().count() == 31)
    assert set(Worker.objects.values_list("pid", flat=True)) == pids, "the same runners continue"
    assert "runner died" not in process.output


@pytest.mark.slow
def test_results_of_a_database_outage_are_stored_once_it_is_over(worker, gate):
    worker("--threads", "4")
    handles = [tasks.hold.send(str(number), str(gate)) for number in range(4)]
    wait_until(lambda: Entry.objects.count() == 4)

    with connections_refused():
        gate.touch()
        back_at = time.monotonic() + 1.5
        wait_until(lambda: time.monotonic() > back_at)
        assert {handle.status() for handle in handles} == {TaskStatus.RUNNING}

    assert {handle.get(timeout=20).is_ok() for handle in handles} == {True}
    assert {handle.info().attempt for handle in handles} == {1}


@pytest.mark.slow
def test_repeatedly_terminated_connections_lose_no_task(worker):
    process = worker("--processes", "2", "--threads", "2", runners=2)
    handles = []
    for number in range(8):
        handles.extend(tasks.noop.send_many({} for _ in range(10)))
        end_connections()
        wait_until(lambda number=number: Task.objects.completed().count() >= 5 * number)

    wait_until(lambda: not Task.objects.filter(status__in=TASK_LIVE_STATES).exists(), limit=30)
    assert {handle.status() for handle in handles} == {TaskStatus.COMPLETED}
    assert {handle.info().attempt for handle in handles} == {1}
    assert process.process.poll() is None


def test_a_task_sent_while_listen_is_lost_runs_once_the_worker_listens_again(worker):
    process = worker("--poll-interval", "60")
    tasks.noop.send().get(timeout=20)
    wait_until(lambda: listeners() == 1)

    assert end_connections(PRODUCERS) == 1
    missed = tasks.noop.send()
    assert missed.get(timeout=20).is_ok()

    wait_until(lambda: listeners() == 1)
    assert tasks.noop.send().get(timeout=20).is_ok()
    wait_until(lambda: "LISTEN lost" in process.output or "database unavailable" in process.output)


def test_polling_finds_a_row_without_a_notification(worker):
    """Rows inserted without a NOTIFY."""
    worker("--poll-interval", "0.2")
    tasks.noop.send().get(timeout=20)
    wait_until(lambda: listeners() == 1)

    for _ in range(3):
        key, now = uuid7(), timezone.now()
        Task.objects.bulk_create([Task(pk=key, task_name=tasks.noop.module_path, sent_at=now, enqueued_at=now)])
        wait_until(lambda key=key: Task.objects.get(pk=key).status == TaskStatus.COMPLETED)


def test_polling_finds_a_delayed_row_without_a_notification(worker):
    worker("--poll-interval", "0.2")
    tasks.noop.send().get(timeout=20)
    now = timezone.now()
    row = Task.objects.create(
        task_name=tasks.noop.module_path, sent_at=now, enqueued_at=now + timedelta(seconds=1), deferred=True
    )

    wait_until(lambda: Task.objects.get(pk=row.pk).status == TaskStatus.COMPLETED)
    assert Task.objects.get(pk=row.pk).started_at >= row.enqueued_at
