"""A send is part of the caller's transaction."""

import time
from contextlib import suppress

import pytest
from django.db import connection, transaction

from horsies_django import TaskStatus
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.database import on_another_connection
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)


class Rollback(Exception):
    pass


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("send", [tasks.write.send, tasks.write.enqueue], ids=["send", "enqueue"])
def test_a_rolled_back_send_stores_no_task(worker, send):
    worker()

    with suppress(Rollback), transaction.atomic():
        send("rolled back")
        raise Rollback
    after = tasks.write.send("after")

    wait_until(lambda: after.status() == TaskStatus.COMPLETED)
    assert [row.pk for row in Task.objects.all()] == [after.id]
    assert list(Entry.objects.values_list("key", flat=True)) == ["after"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_is_visible_to_workers_only_after_the_commit(worker):
    if connection.vendor == "sqlite":
        return  # the open transaction holds SQLite's only write lock, so no worker could write
    worker()
    with transaction.atomic():
        inside = tasks.write.send("inside")
        with transaction.atomic(savepoint=True):
            pass
        outside = on_another_connection(lambda: tasks.write.send("outside"))
        wait_until(lambda: on_another_connection(outside.status) == TaskStatus.COMPLETED)
        assert inside.status() == TaskStatus.PENDING
        committed_at = time.time()

    wait_until(lambda: inside.status() == TaskStatus.COMPLETED)

    assert Entry.objects.get(key="inside").at > committed_at


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_commit_wakes_a_worker_that_polls_every_ten_minutes(worker):
    if connection.vendor == "sqlite":
        return  # SQLite has no notifications
    worker("--poll-interval", "600")
    tasks.noop.send().get(timeout=20)

    for _ in range(30):
        with transaction.atomic():
            handle = tasks.noop.send()
        wait_until(lambda handle=handle: handle.status() == TaskStatus.COMPLETED)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_listens_again_after_its_connection_was_terminated(worker):
    if connection.vendor == "sqlite":
        return
    process = worker("--poll-interval", "60")
    with connection.cursor() as cursor:
        (first,) = wait_until(lambda: _listening_connections(cursor))
        cursor.execute("SELECT pg_terminate_backend(%s)", [first])
        wait_until(lambda: "LISTEN lost" in process.output or "database unavailable" in process.output)
        wait_until(lambda: _listening_connections(cursor) not in ([], [first]))

    assert tasks.add.send(1).value(timeout=20) == 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_continues_after_its_connections_were_terminated(worker):
    if connection.vendor == "sqlite":
        return
    process = worker("--poll-interval", "0.2")
    tasks.write.send("before").get(timeout=20)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

    assert tasks.write.send("after").get(timeout=20).is_ok()
    assert process.process.poll() is None


def _listening_connections(cursor):
    cursor.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name IN (SELECT left('horsies ' || id, 63)"
        " FROM horsies_workers) AND datname = current_database()"
    )
    return [pid for (pid,) in cursor.fetchall()]
