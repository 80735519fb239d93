"""Commands that wait for the database: the first signal ends them in bounded time, the second at once."""

import signal
import sqlite3

import pytest
from django.db import connection

from horsies_django import TaskStatus
from tests.conftest import database_url, wait_until
from tests.faults import jobs
from tests.faults.server import frozen, locked
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

STOPS = (signal.SIGTERM, signal.SIGINT)

#: Short thresholds for a reaper, and frequent heartbeats of a worker.
FAST = {"TEST_STALE_MS": "1000", "TEST_HEARTBEAT_MS": "300"}


@pytest.fixture
def on_postgres(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("needs a table to lock; runs with the tests on PostgreSQL")


def waiting(table="horsies_tasks"):
    """Return how many statements wait for a lock on a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
            # The tables of other databases may have the same oid.
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [table],
        )
        return cursor.fetchone()[0]


@pytest.mark.parametrize("number", [1, 2])
def test_signals_end_commands_that_wait_for_a_table_lock(on_postgres, manage, number):
    """One signal ends them within little more than 10 s, two within 3 s."""
    with locked(database_url(), "horsies_tasks"), locked(database_url(), "horsies_schedules"):
        once = "--shutdown-timeout", ("0" if number == 1 else "600"), "--timeout-grace", "0.1", "--no-reaper"
        processes = [manage("horsies_worker", "--drain", *once), manage("horsies_reaper"), manage("horsies_scheduler")]
        wait_until(lambda: waiting() >= 2 and waiting("horsies_schedules") == 1, 60, "all commands wait")

        for process in processes:
            for stop in STOPS[:number]:
                process.signal(stop)

        # A drain waits for a lock for 10 s at most, and then it stops cleanly.
        assert [process.wait(40) for process in processes] == [number - 1, 1, 1]
    assert ["did not stop in time" in process.output for process in processes] == [number == 2, True, True]
    assert all("Traceback" not in process.output for process in processes)


def test_the_tasks_of_a_drain_that_two_signals_end_are_recovered(on_postgres, manage, tmp_path):
    gate = tmp_path / "gate"
    handle, later = jobs.hold_again.send("held", str(gate)), tasks.add.send(1)
    process = manage("horsies_worker", "--drain", "--threads", "1", "--no-reaper", **FAST)
    wait_until(Entry.objects.exists, 40, "the body has begun")

    with locked(database_url(), "horsies_tasks"):
        wait_until(waiting, 40, "the producer waits")
        for stop in STOPS:
            process.signal(stop)
        assert process.wait(40) == 1, process.output

    assert handle.status() == TaskStatus.RUNNING
    gate.touch()
    # Its threshold is longer, or it may take its own late heartbeats for those of a dead worker.
    other = manage("horsies_worker", **FAST | {"TEST_STALE_MS": "4000"}, TEST_CHECK_MS="300")
    assert handle.value(timeout=60) == "held"
    assert later.value(timeout=60) == 2
    assert other.process.poll() is None


def test_one_signal_ends_a_drain_in_bounded_time_on_a_frozen_server(own_cluster, start, tmp_path):
    handle = jobs.hold.send("held", str(tmp_path / "gate"))
    process = start(
        "horsies_worker", "--drain", "--no-reaper", "--shutdown-timeout", "0", "--timeout-grace", "0.1", **FAST
    )
    wait_until(Entry.objects.exists, 60, "the body has begun")
    connection.close()

    with frozen(own_cluster):
        process.signal(signal.SIGTERM)
        assert process.wait(40) == 1, process.output

    assert "did not stop in time" in process.output
    assert handle.status() == TaskStatus.RUNNING


CALL = """
import signal
from django.core.management import call_command
from django.db import connection
before = signal.getsignal(signal.SIGINT)
try:
    call_command("horsies_worker", drain=True, no_reaper=True)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is before, connection.in_atomic_block)
"""


def test_two_signals_make_a_drain_called_from_python_raise_keyboard_interrupt(on_postgres, manage):
    with locked(database_url(), "horsies_tasks"):
        process = manage("shell", "-c", CALL)
        wait_until(waiting, 60, "the producer waits")

        for stop in STOPS:
            process.signal(stop)

        assert process.wait(40) == 0, process.output
    assert "interrupted True False" in process.output


@pytest.mark.sqlite
def test_a_second_signal_ends_a_drain_that_waits_for_sqlites_write_lock(manage, tmp_path):
    if connection.vendor != "sqlite":
        pytest.skip("runs with the tests on SQLite")
    gate = tmp_path / "gate"
    tasks.hold.send("held", str(gate))
    process = manage("horsies_worker", "--drain", "--no-reaper")
    wait_until(lambda: Entry.objects.filter(key="held").exists(), 40)
    with sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        gate.touch()  # now the worker stores the result, and waits
        for stop in STOPS:
            process.signal(stop)

        assert process.wait(20) == 1, process.output  # not after the 30 s that it waits for the lock
        other.execute("ROLLBACK")
