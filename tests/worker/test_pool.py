"""Django's connection pool: bodies and requests share it, and the connections of the worker are not in it."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import call_command
from django.db import close_old_connections, connection

from horsies_django import task
from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.faults import jobs
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker import open_transactions

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="Django has a pool for PostgreSQL only"),
]


@task
def wait_for_a_failure():
    Entry.objects.exists()
    wait_until(Task.objects.filter(status="FAILED").exists)


@task
def session(leave):
    with connection.cursor() as cursor:
        if leave:
            cursor.execute("SET ROLE pg_monitor; SET search_path TO nowhere")
        cursor.execute("SELECT current_user, current_setting('search_path'), pg_backend_pid()")
        found = list(cursor.fetchone())
    if leave:
        close_old_connections()
    return found


@pytest.fixture
def pool(monkeypatch):
    """Open a pool for all threads of this process."""
    settings = connection.settings_dict
    monkeypatch.setitem(settings, "CONN_MAX_AGE", 0)

    def open_pool(size, **options):
        connection.close()
        pooled = settings["OPTIONS"] | {"pool": {"min_size": 0, "max_size": size, **options}}
        monkeypatch.setitem(settings, "OPTIONS", pooled)
        return connection.pool

    yield open_pool
    connection.close()
    connection.close_pool()


def taken(pool):
    """Return how many connections of the pool are in use; one may be on its way back."""
    statistics = pool.get_stats()
    return statistics["pool_size"] - statistics["pool_available"]


def other_connections():
    with connection.cursor() as cursor:
        of_this = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
        cursor.execute(f"{of_this} AND backend_type = 'client backend' AND pid <> pg_backend_pid()")
        return dict(cursor.fetchall())


def test_bodies_take_connections_of_the_pool_and_give_them_back(pool, drain):
    opened = pool(2)
    handles = [tasks.write.send("function") for _ in range(10)] + [tasks.awrite.send("coroutine") for _ in range(10)]
    connection.close()

    drain(threads=2, async_slots=2)

    connection.close()
    wait_until(lambda: taken(opened) == 0)
    assert opened.get_stats()["pool_size"] <= 2
    assert {handle.status() for handle in handles} == {"COMPLETED"}


@pytest.mark.parametrize("leave", [open_transactions.leave, open_transactions.aleave])
def test_a_transaction_that_a_body_leaves_open_does_not_go_back_to_the_pool(pool, drain, leave):
    opened = pool(1)
    handles = [leave.send("enter_atomic"), tasks.write.send("next")]
    connection.close()

    drain(threads=1)

    connection.close()
    wait_until(lambda: taken(opened) == 0)
    assert {handle.status() for handle in handles} == {"COMPLETED"}
    assert [entry.key for entry in Entry.objects.all()] == ["next"]


def test_with_reset_sessions_no_body_finds_what_one_left_that_closed_its_connection(pool, drain, settings):
    options = settings.TASKS["default"]["OPTIONS"] | {"worker": {"reset_sessions": True}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": options}}
    opened = pool(1)
    before, leave, after = session.send(False), session.send(True), session.send(False)
    connection.close()

    drain(threads=1)

    connection.close()
    wait_until(lambda: taken(opened) == 0)
    assert leave.value(0)[:2] == ["pg_monitor", "nowhere"]
    assert after.value(0) == before.value(0)  # of the same process of the server


def test_workers_reapers_and_waits_need_no_connection_of_the_pool(pool, drain):
    opened = pool(1, timeout=0.1)
    handle = tasks.noop.send()
    assert taken(opened) == 1

    drain()
    call_command("horsies_reaper", once=True, verbosity=0)

    assert handle.get(timeout=60).is_ok()


def test_a_pool_smaller_than_the_threads_is_logged_and_no_body_waits_for_ever(pool, drain, caplog):
    handles = [wait_for_a_failure.send() for _ in range(2)]
    pool(1, timeout=0.1)

    with caplog.at_level(logging.WARNING, "horsies_django.worker"):
        drain(threads=2)

    warning = (
        "pool smaller than threads, bodies wait for each other's connections database=default max_size=1 threads=2"
    )
    assert warning in caplog.text
    failed, completed = sorted((handle.get(0) for handle in handles), key=lambda result: result.is_ok())
    assert completed.is_ok()
    assert failed.err.message == "couldn't get a connection after 0.10 sec"


@pytest.mark.slow
def test_a_worker_and_a_site_with_small_pools(pool, worker):
    settings = "tests.worker.pool_settings"
    # Within the test, only a notification starts a task.
    process = worker("--threads", "2", "--poll-interval", "3600", DJANGO_SETTINGS_MODULE=settings)
    assert all(name.startswith("horsies ") for name in other_connections().values())
    opened = pool(2)

    def request(number):
        body = tasks.awrite if number % 2 else tasks.write
        handle = body.send(str(number))
        close_old_connections()
        try:
            return handle.get(timeout=60).is_ok()
        finally:
            connection.close()

    with ThreadPoolExecutor(10) as requests:
        assert all(requests.map(request, range(40)))
    dead = jobs.exit_with.send("dead", 1)
    connection.close()
    assert dead.get(timeout=60).err.error_code == "WORKER_CRASHED"
    assert tasks.noop.send().get(timeout=60).is_ok()
    connection.close()
    wait_until(lambda: taken(opened) == 0)
    assert opened.get_stats()["pool_size"] <= 2
    connection.close_pool()

    process.stop()
    assert process.process.returncode == 0
    assert "Traceback" not in process.output
    assert not Worker.objects.exists()
    wait_until(lambda: not other_connections(), what="no connection is left")
