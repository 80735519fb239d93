"""A worker does not wait for locked rows, and a cancel outlasts deadlocks with workers."""

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.signals import post_delete

from horsies_django import TaskStatus
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.reaper.retention import jobs as kept
from tests.worker.execution import jobs

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_body_that_leaves_its_row_locked_blocks_no_other_task(worker, tmp_path):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks no rows: a writer locks the whole file")
    process = worker()
    for number in range(1, 4):  # on a busy machine the timeout may pass before the body takes the lock
        gate = tmp_path / f"gate {number}"
        handle = jobs.leave_a_thread_with_the_row.send(str(gate))
        wait_until(lambda: process.output.count("task over its time limit") == number)  # noqa: B023  # called at once
        if gate.with_suffix(".locked").exists():
            break

    assert tasks.add.send(1, b=2).value(timeout=20) == 3  # the row is still locked
    assert handle.status() is TaskStatus.RUNNING
    gate.touch()

    wait_until(lambda: handle.status() is TaskStatus.FAILED)
    assert Task.objects.get(pk=handle.id).error_code == "TASK_TIMEOUT"


def test_a_task_ends_even_if_its_row_can_not_be_deleted(drain, caplog):
    def refuse(sender, **kwargs):
        raise RuntimeError("not this one")

    post_delete.connect(refuse, sender=Task)
    try:
        handles = [kept.fleeting.send(), kept.fleeting_atomic.send(), kept.plain.send()]
        drain()
    finally:
        post_delete.disconnect(refuse, sender=Task)

    assert [handle.status() for handle in handles] == [TaskStatus.COMPLETED] * 3
    assert "tasks without retention left to the reaper" in caplog.text


@pytest.fixture
def deadlock():
    """Return a function that makes the next changes of tasks fail as in a deadlock, and one that counts the changes."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE tries")  # which no rollback sets back

        def deadlock(times):
            cursor.execute(
                "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF nextval('tries') <= {times} THEN RAISE deadlock_detected; END IF; RETURN NULL; END $$"
            )
            cursor.execute(
                "CREATE TRIGGER deadlock BEFORE UPDATE ON horsies_tasks FOR EACH STATEMENT EXECUTE FUNCTION deadlock()"
            )

        def tries():
            cursor.execute("SELECT last_value FROM tries")
            return cursor.fetchone()[0]

        yield deadlock, tries
        cursor.execute("DROP FUNCTION deadlock CASCADE")
        cursor.execute("DROP SEQUENCE tries")


def test_a_cancel_is_tried_again_after_deadlocks(deadlock):
    cause_deadlocks, tries = deadlock
    handle = tasks.noop.send()
    cause_deadlocks(3)

    assert handle.cancel()

    assert tries() == 4
    assert handle.status() is TaskStatus.CANCELLED


def test_a_cancel_in_a_transaction_leaves_a_deadlock_to_the_caller(deadlock):
    cause_deadlocks, tries = deadlock
    handle = tasks.noop.send()
    cause_deadlocks(1)

    with pytest.raises(OperationalError, match="deadlock"), transaction.atomic():
        handle.cancel()

    assert tries() == 1
    assert handle.status() is TaskStatus.PENDING
