"""The worker's own connections: a host that is gone, a lock that is held, a server that takes no writes."""

import time

import psycopg
import pytest
from django.db import DataError, connections

from horsies_django import TaskStatus, Workflow
from horsies_django.db.pause_on_outage import snooze_on_outage
from horsies_django.exceptions import Snooze
from horsies_django.models import Task, Worker
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.worker.connection import own_connection
from tests.conftest import wait_until
from tests.faults.server import locked
from tests.jobs import tasks


def shown(name):
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return cursor.fetchone()[0]


@pytest.fixture
def on_postgres(transactional_db):
    if connections["default"].vendor != "postgresql":
        pytest.skip("the settings are PostgreSQL's; runs with the tests on PostgreSQL")


@pytest.fixture
def options(on_postgres):
    """OPTIONS of the project, to be changed by a test."""
    settings = connections["default"].settings_dict
    before = settings["OPTIONS"]
    settings["OPTIONS"] = dict(before)
    yield settings["OPTIONS"]
    settings["OPTIONS"] = before


def test_own_connections_have_times_and_the_projects_options_win(options):
    options |= {"tcp_user_timeout": 60_000, "options": "-c lock_timeout=3s"}

    with own_connection("default", "test"):
        lock_timeout = shown("lock_timeout")
        parameters = connections["default"].connection.info.get_parameters()

    assert {name: parameters[name] for name in ("connect_timeout", "keepalives_idle", "tcp_user_timeout")} == {
        "connect_timeout": "5",
        "keepalives_idle": "5",
        "tcp_user_timeout": "60000",
    }
    assert lock_timeout == "3s"


def test_a_lock_that_is_held_for_long_is_not_waited_for_and_a_loop_of_the_reaper_waits(on_postgres):
    with own_connection("default", "test"):
        assert shown("lock_timeout") == "10s"
    with own_connection("default", "test", waits=True):
        assert shown("lock_timeout") == "0"


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_own_connections_are_read_committed_whatever_the_project_asks_for(options, level):
    options["isolation_level"] = psycopg.IsolationLevel[level]
    options["options"] = f"-c default_transaction_isolation={level.replace('_', chr(92) + ' ').lower()}"

    with own_connection("default", "test"):
        alone = shown("transaction_isolation")
        connections["default"].set_autocommit(False)
        inside = shown("transaction_isolation")
        connections["default"].rollback()
        connections["default"].set_autocommit(True)

    assert (alone, inside) == ("read committed", "read committed")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_a_project_with_another_isolation_level_loses_and_fails_nothing(own_cluster, start, level):
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
    assert all(word not in worker.output for worker in workers for word in ("Traceback", "could not serialize"))


@pytest.mark.slow
def test_a_worker_notices_within_seconds_that_its_servers_host_has_vanished(own_cluster, host, start):
    worker = start("horsies_worker", "--no-reaper", "--no-scheduler", DATABASE_URL=host.url)
    wait_until(Worker.objects.exists, 60, "the worker is registered")
    wait_until(lambda: tasks.noop.send().get(20).is_ok(), 60, "a task is run")

    host.vanish()
    tasks.noop.send()
    began = time.monotonic()
    wait_until(lambda: "database unavailable" in worker.output, 60, "the worker has noticed")  # 939 s without
    print(f"noticed after {time.monotonic() - began:.1f} s")
    host.come_back()

    assert tasks.noop.send().get(60).is_ok()


@pytest.mark.slow
def test_a_server_that_takes_no_writes_fails_no_task(own_cluster, start):
    handles = [tasks.noop.send() for _ in range(3)]
    with psycopg.connect(own_cluster.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        admin.execute("SELECT pg_reload_conf()")
        worker = start("horsies_worker", DATABASE_URL=own_cluster.url)
        wait_until(lambda: worker.output.count("read-only") > 2, 60, "the worker has met it")
        admin.execute("SET default_transaction_read_only = off")
        admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
        admin.execute("SELECT pg_reload_conf()")

    assert [handle.get(60).is_ok() for handle in handles] == [True] * 3


@pytest.mark.parametrize("code", ["25006", "40001", "40P01", "57P01", "57P03", "55P03"])
def test_what_a_server_says_that_is_no_ones_fault_is_an_outage(on_postgres, code):
    """A node whose steps meet it waits, and does not fail."""
    with pytest.raises(Snooze), snooze_on_outage(), connections["default"].cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$")


def test_what_would_be_refused_again_is_no_outage(on_postgres):
    with pytest.raises(DataError), snooze_on_outage(), connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_whose_table_is_locked_for_long_goes_on_listening_to_others_in_between(own_cluster, start):
    worker = start("horsies_worker", "--no-reaper", "--no-scheduler", DATABASE_URL=own_cluster.url)
    wait_until(Worker.objects.exists, 60, "the worker is registered")

    with locked(own_cluster.url, "horsies_tasks"):
        wait_until(lambda: "lock timeout" in worker.output, 60, "the producer has given up waiting")

    assert tasks.noop.send().get(60).is_ok()
