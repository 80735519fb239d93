"""A worker does not wait for locked rows, and a cancel outlasts deadlocks with workers."""

import signal

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.signals import post_delete

from horsies_django import TaskStatus
from horsies_django.models import Heartbeat, Task, Worker
from tests.conftest import database_url, wait_until
from tests.database import on_another_connection
from tests.jobs import tasks
from tests.jobs.models import Entry
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


@pytest.fixture
def impatient_worker(worker):
    """Start a worker that waits 0.2 s for a lock, and sends frequent heartbeats."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks no rows: a writer locks the whole file")
    url = database_url()
    url += ("&" if "?" in url else "?") + "options=-c%20lock_timeout%3D200"
    return lambda *flags: worker(*flags, DATABASE_URL=url, TEST_HEARTBEAT_MS="200")


def has_waited_in_vain(process):
    return lambda: "canceling statement due to lock timeout" in process.output


@pytest.mark.slow
def test_running_tasks_that_are_locked_hold_up_no_other_task(impatient_worker, gate):
    process = impatient_worker("--threads", "2")
    cancelled, kept = tasks.hold.send("cancelled", str(gate)), tasks.hold.send("kept", str(gate))
    wait_until(lambda: Entry.objects.count() == 2)

    with transaction.atomic():
        cancelled.cancel(include_running=True)
        list(Task.objects.filter(pk=kept.id).select_for_update())
        gate.touch()
        wait_until(has_waited_in_vain(process))
        assert on_another_connection(lambda: tasks.add.send(1).value(timeout=20)) == 2

    assert kept.value(timeout=20) == "kept"
    assert cancelled.status() is TaskStatus.CANCELLED


@pytest.mark.slow
def test_a_prefetched_task_that_is_locked_holds_up_no_other_task(impatient_worker, gate):
    process = impatient_worker("--threads", "1", "--prefetch", "1")
    first = tasks.hold.send("first", str(gate))
    wait_until(lambda: Entry.objects.count() == 1)
    prefetched = tasks.add.send(1)
    wait_until(lambda: prefetched.status() is TaskStatus.CLAIMED)

    with transaction.atomic():
        list(Task.objects.filter(pk=prefetched.id).select_for_update())
        gate.touch()
        wait_until(has_waited_in_vain(process))
        assert on_another_connection(lambda: tasks.add.send(1).value(timeout=20)) == 2

    assert first.value(timeout=20) == "first"
    assert prefetched.value(timeout=20) == 2


@pytest.mark.slow
def test_a_worker_whose_own_row_is_locked_runs_tasks_and_sends_their_heartbeats(impatient_worker, gate):
    process = impatient_worker()
    held = tasks.hold.send("held", str(gate))
    wait_until(lambda: Entry.objects.count() == 1)

    with transaction.atomic():
        (row,) = Worker.objects.select_for_update()
        sent = Heartbeat.objects.count()
        wait_until(lambda: Heartbeat.objects.count() >= sent + 2)
        gate.touch()
        assert on_another_connection(lambda: held.value(timeout=20)) == "held"
        assert on_another_connection(lambda: tasks.add.send(1).value(timeout=20)) == 2
        assert Worker.objects.get().last_beat_at == row.last_beat_at

    wait_until(lambda: Worker.objects.get().last_beat_at > row.last_beat_at)
    assert not has_waited_in_vain(process)()


@pytest.mark.slow
def test_a_worker_whose_own_row_is_locked_becomes_quiet_resumes_and_stops_by_signals(impatient_worker):
    process = impatient_worker("--shutdown-timeout", "1")
    with transaction.atomic():
        list(Worker.objects.select_for_update())
        process.signal(signal.SIGTSTP)
        wait_until(lambda: "worker quiet" in process.output)
    wait_until(Worker.objects.filter(quiet_since__isnull=False).exists)

    with transaction.atomic():
        list(Worker.objects.select_for_update())
        process.signal(signal.SIGCONT)
        assert on_another_connection(lambda: tasks.add.send(1).value(timeout=20)) == 2
        process.signal(signal.SIGTERM)
        assert process.wait(30) == 0

    assert not has_waited_in_vain(process)()
    assert "runner killed" not in process.output


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
