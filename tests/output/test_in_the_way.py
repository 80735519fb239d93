"""Output while transactions of bodies and of others are in the way, and while the database refuses it."""

from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from horsies_django import TaskStatus
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.conftest import wait_until
from tests.database import another_connection_waits_for_our_lock, on_another_connection
from tests.jobs import tasks
from tests.output import jobs

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def postgresql():
    """Run the test on PostgreSQL alone."""
    if connection.vendor != "postgresql":
        pytest.skip("no locks of rows")


def data(handle):
    return [chunk.data for chunk in handle.output()]


@contextmanager
def locked_row(handle):
    """Hold the lock of a task's row."""
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=handle.id)
        yield


@pytest.mark.slow
def test_an_atomic_body_that_writes_is_stopped_at_its_time_limit(worker):
    worker("--threads", "2", "-v0")
    handle = jobs.writes_and_spins.send(40)

    assert handle.get(30).err_value.error_code == "TASK_TIMEOUT"
    assert set(data(handle)) == {"spins"}


@pytest.mark.slow
def test_an_atomic_body_that_waits_for_its_row_holds_up_no_other_task(postgresql, worker, gate):
    worker("--threads", "4", "-v0")
    handle = jobs.writes_last_words.send(str(gate))
    # The body has an open transaction, so its entry is not visible.
    wait_until(lambda: data(handle) == ["first words"])

    with locked_row(handle):
        gate.touch()
        wait_until(another_connection_waits_for_our_lock)
        others = on_another_connection(lambda: [tasks.noop.send() for _ in range(5)])
        results = on_another_connection(lambda: [other.get(30) for other in others])

    assert all(result.is_ok() for result in results)
    assert handle.get(30).is_ok()
    assert data(handle) == ["first words", "last words"]


@pytest.mark.slow
def test_what_a_body_has_written_is_stored_while_its_result_waits_for_its_row(postgresql, worker, gate, entries):
    worker("--threads", "2", "-v0")
    handle = jobs.saves_and_writes.send(str(gate))
    wait_until(lambda: entries() == ["saved"])

    with locked_row(handle):
        gate.touch()
        wait_until(lambda: on_another_connection(lambda: data(handle)) == ["after the save"])

    assert handle.get(30).is_ok()
    assert data(handle) == ["after the save"]


def test_what_callbacks_of_the_commit_write_is_stored():
    handle = jobs.writes_on_commit.send()

    drain()

    assert data(handle) == ["in the body", "after the commit"]


@contextmanager
def refusing(word):
    """Let the database refuse to store this chunk."""
    text = f"'\"{word}\"'"
    trigger = f"CREATE TRIGGER refuse BEFORE INSERT ON horsies_task_output FOR EACH ROW WHEN (%s = {text})"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
                " AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$"
            )
            cursor.execute(f"{trigger % 'NEW.data::text'} EXECUTE FUNCTION refuse()")
        else:
            cursor.execute(f"{trigger % 'NEW.data'} BEGIN SELECT RAISE(ABORT, 'refused'); END")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(
                "DROP FUNCTION refuse CASCADE" if connection.vendor == "postgresql" else "DROP TRIGGER refuse"
            )


def test_output_that_the_database_refuses_is_lost_and_keeps_no_result_back(drain):
    refused, *others = [jobs.writes.send([word]) for word in ("bad", "good", "good")]

    with refusing("bad"):
        drain()

    assert {handle.status() for handle in (refused, *others)} == {TaskStatus.COMPLETED}
    assert data(refused) == []
    assert [data(handle) for handle in others] == [["good"], ["good"]]


@pytest.mark.slow
def test_output_that_the_database_refuses_stops_no_running_body(worker, gate):
    process = worker("--threads", "2", "-v1")
    refused, other = (jobs.writes_before_and_after.with_options(queue_name=name).send(str(gate)) for name in ("a", "b"))

    with refusing("first words"):
        wait_until(lambda: process.output.count("output refused and lost") >= 2)
    gate.touch()

    assert refused.get(30).is_ok()
    assert other.get(30).is_ok()
    assert data(refused) == data(other) == ["last words"]
