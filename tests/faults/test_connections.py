"""The worker's own connections: a vanished host, a held lock, a read-only server."""

import time

import psycopg
import pytest
from django.db import DataError, connections

from horsies_django import TaskStatus, Workflow
from horsies_django.db.connection import own_connection
from horsies_django.db.snooze_on_outage import snooze_on_outage
from horsies_django.exceptions import Snooze
from horsies_django.models import Task, Worker
from horsies_django.models import Workflow as WorkflowRow
from tests.conftest import wait_until
from tests.faults.server import locked
from tests.jobs import tasks


def setting(name):
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return cursor.fetchone()[0]


@pytest.fixture
def on_postgres(transactional_db):
    if connections["default"].vendor != "postgresql":
        pytest.skip("the settings are PostgreSQL's; runs with the tests on PostgreSQL")


@pytest.fixture
def options(on_postgres):
    """The project's OPTIONS of the connection, which a test may change."""
    settings = connections["default"].settings_dict
    before = settings["OPTIONS"]
    settings["OPTIONS"] = dict(before)
    yield settings["OPTIONS"]
    settings["OPTIONS"] = before


def test_own_connections_have_timeouts_that_the_project_can_override(options):
    options |= {"tcp_user_timeout": 60_000, "options": "-c lock_timeout=3s"}

    with own_connection("default", "test"):
        lock_timeout = setting("lock_timeout")
        parameters = connections["default"].connection.info.get_parameters()

    assert {name: parameters[name] for name in ("connect_timeout", "keepalives_idle", "tcp_user_timeout")} == {
        "connect_timeout": "5",
        "keepalives_idle": "5",
        "tcp_user_timeout": "60000",
    }
    assert lock_timeout == "3s"


def test_own_connections_have_a_lock_timeout_unless_they_are_to_wait(on_postgres):
    with own_connection("default", "test"):
        assert setting("lock_timeout") == "10s"
    with own_connection("default", "test", waits=True):
        assert setting("lock_timeout") == "0"


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_own_connections_are_read_committed_whatever_the_project_sets(options, level):
    options["isolation_level"] = psycopg.IsolationLevel[level]
    options["options"] = f"-c default_transaction_isolation={level.replace('_', chr(92) + ' ').lower()}"

    with own_connection("default", "test"):
        alone = setting("transaction_isolation")
        connections["default"].set_autocommit(False)
        inside = setting("transaction_isolation")
        connections["default"].rollback()
        connections["default"].set_autocommit(True)

    assert (alone, inside) == ("read committed", "read committed")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_workers_complete_every_task_under_another_isolation_level(own_cluster, start, level):
    tasks.noop.send_many({} for _ in range(200))
    flows = [Workflow("flow", [tasks.noop.node()(), tasks.noop.node()()]).start() for _ in range(50)]
    workers = [
        start("horsies_worker", "--drain", DATABASE_URL=own_cluster.url, TEST_ISOLATION=level,
              DJANGO_SETTINGS_MODULE="tests.faults.settings")
        for _ in range(2)
    ]  # fmt: skip

    assert [worker.wait(120) for worker in workers] == [0, 0]
    assert set(Task.objects.values_list("status", flat=True)) == {TaskStatus.COMPLETED}
    assert WorkflowRow.objects.filter(status="COMPLETED").count() == len(flows)
    assert all(text not in worker.output for worker in workers for text in ("Traceback", "could not serialize"))


@pytest.mark.slow
def test_a_worker_notices_within_seconds_that_its_servers_host_has_vanished(own_cluster, host, start):
    worker = start("horsies_worker", "--no-reaper", "--no-scheduler", DATABASE_URL=host.url)
    wait_until(Worker.objects.exists, 60, "the worker is registered")
    wait_until(lambda: tasks.noop.send().get(20).is_ok(), 60, "a task has run")

    host.vanish()
    tasks.noop.send()
    began = time.monotonic()
    wait_until(lambda: "database unavailable" in worker.output, 60, "the worker has noticed")  # 939 s without timeouts
    print(f"noticed after {time.monotonic() - began:.1f} s")
    host.come_back()

    assert tasks.noop.send().get(60).is_ok()


@pytest.mark.slow
def test_a_read_only_server_fails_no_task(own_cluster, start):
    handles = [tasks.noop.send() for _ in range(3)]
    with psycopg.connect(own_cluster.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        worker = start("horsies_worker", DATABASE_URL=own_cluster.url)
        wait_until(lambda: worker.output.count("read-only") > 2, 60, "the worker has met read-only errors")
        admin.execute("SET default_transaction_read_only = off")
        admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
        admin.execute("SELECT pg_reload_conf()")

    assert [handle.get(60).is_ok() for handle in handles] == [True] * 3


@pytest.mark.parametrize("code", ["25006", "40001", "40P01", "57P01", "57P03", "55P03"])
def test_a_transient_server_error_counts_as_an_outage(on_postgres, code):
    """A node that meets one waits instead of failing."""
    with pytest.raises(Snooze), snooze_on_outage(), connections["default"].cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$")


def test_a_permanent_server_error_does_not_count_as_an_outage(on_postgres):
    with pytest.raises(DataError), snooze_on_outage(), connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_survives_a_long_lock_on_the_task_table_and_runs_tasks_after_it(own_cluster, start):
    worker = start("horsies_worker", "--no-reaper", "--no-scheduler", DATABASE_URL=own_cluster.url)
    wait_until(Worker.objects.exists, 60, "the worker is registered")

    with locked(own_cluster.url, "horsies_tasks"):
        wait_until(lambda: "lock timeout" in worker.output, 60, "the producer has given up waiting")

    assert tasks.noop.send().get(60).is_ok()
