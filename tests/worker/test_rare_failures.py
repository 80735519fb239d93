"""Rare failures that must not lose a task."""

import signal
import time
from contextlib import contextmanager

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.models import Heartbeat, Task, TaskAttempt
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.store import WorkerStore
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

#: Frequent heartbeats, and a threshold that a slow machine does not exceed.
FAST = {"TEST_STALE_MS": "60000", "TEST_HEARTBEAT_MS": "200", "TEST_CHECK_MS": "200"}


@pytest.mark.slow
def test_a_task_claimed_again_while_its_old_body_runs_uses_two_slots(worker, tmp_path):
    process = worker("--threads", "2")
    gates = [tmp_path / "first", tmp_path / "second"]
    handle = tasks.hold.send("twice", str(gates[0]))
    wait_until(lambda: Entry.objects.filter(key="twice").count() == 1)
    handle.cancel(include_running=True)
    Task.objects.filter(pk=handle.id).update(args=["twice", str(gates[1])])
    handle.retry()
    wait_until(lambda: Entry.objects.filter(key="twice").count() == 2)

    gates[0].touch()  # the old body ends; its result belongs to an older claim
    assert tasks.add.send(1).value(timeout=20) == 2
    assert handle.status() == TaskStatus.RUNNING
    process.signal(signal.SIGTERM)
    wait_until(lambda: "worker stopping" in process.output)
    gates[1].touch()

    assert process.wait(20) == 0
    assert handle.get(0).ok == "twice"


@pytest.mark.slow
def test_a_body_that_ends_its_process_with_status_0_is_a_crash(worker):
    worker()
    handle = tasks.leave_quietly.send("quiet")

    assert handle.get(timeout=20).err.error_code == "WORKER_CRASHED"
    assert tasks.add.send(1).value(timeout=20) == 2


@pytest.mark.slow
def test_large_results_are_stored_in_several_ticks(drain):
    handles = tasks.large.send_many({"size": 6_000_000} for _ in range(6))

    drain()

    assert {handle.status() for handle in handles} == {TaskStatus.COMPLETED}


@contextmanager
def refusing(handle, *states):
    """Let the database refuse to store one of these states for a task."""
    is_postgresql = connection.vendor == "postgresql"
    key = handle.id if is_postgresql else handle.id.hex
    refused = ", ".join(f"'{state}'" for state in states)
    trigger = (
        "CREATE TRIGGER refuse BEFORE UPDATE ON horsies_tasks FOR EACH ROW"
        f" WHEN (OLD.id = '{key}' AND NEW.status IN ({refused}))"
    )
    with connection.cursor() as cursor:
        if is_postgresql:
            cursor.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
                " AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$"
            )
            cursor.execute(f"{trigger} EXECUTE FUNCTION refuse()")
        else:
            cursor.execute(f"{trigger} BEGIN SELECT RAISE(ABORT, 'refused'); END")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE" if is_postgresql else "DROP TRIGGER refuse")


def test_a_trigger_that_refuses_a_result_fails_only_its_task(drain):
    refused, *others = [tasks.noop.send() for _ in range(3)]

    with refusing(refused, "COMPLETED"):
        drain()

    assert refused.status() == TaskStatus.FAILED
    assert {handle.status() for handle in others} == {TaskStatus.COMPLETED}


@pytest.mark.slow
def test_a_result_that_is_refused_even_as_a_failure_is_kept_until_it_can_be_stored(worker):
    refused = tasks.write.send("refused")
    with refusing(refused, "COMPLETED", "FAILED"):
        process = worker("--threads", "1", **FAST)
        wait_until(lambda: process.output.count("can't be processed") >= 2, what="two attempts to store the result")
        assert tasks.write.send("other").get(timeout=20).is_ok()

        row = Task.objects.get(pk=refused.id)
        assert (row.status, row.attempt, row.claim) == (TaskStatus.RUNNING, 1, 1)
        assert Entry.objects.filter(key="refused").count() == 1
        heartbeats = Heartbeat.objects.filter(task_id=refused.id)
        before = heartbeats.count()
        wait_until(lambda: heartbeats.count() >= before + 2, what="heartbeats for the kept result")

    assert refused.get(timeout=20).is_ok()
    assert Entry.objects.filter(key="refused").count() == 1


@pytest.mark.slow
def test_a_row_deleted_while_its_body_runs_does_not_affect_other_tasks(worker, tmp_path):
    process = worker("--threads", "2", **FAST)
    gate = tmp_path / "gate"
    deleted, kept = tasks.hold.send("deleted", str(gate)), tasks.hold.send("kept", str(gate))
    wait_until(lambda: Entry.objects.count() == 2)

    Task.objects.filter(pk=deleted.id).delete()
    heartbeats = Heartbeat.objects.filter(task_id=kept.id)
    before = heartbeats.count()
    wait_until(lambda: heartbeats.count() >= before + 5)
    gate.touch()

    assert kept.value(timeout=20) == "kept"
    assert Task.objects.get(pk=kept.id).attempt == 1
    assert process.process.poll() is None


def test_tasks_claimed_by_a_lost_commit_are_released_without_an_attempt():
    store = WorkerStore(WorkerConfig.of("default"), WorkerInfo("me", "host", 1))
    tasks.noop.send_many({} for _ in range(3))
    with transaction.atomic():
        known, *_ = Task.objects.claim("me", start=2, prefetch=1)

    store.hand_back_unknown([known])

    rows = Task.objects.order_by("pk").values_list("status", "attempt")
    assert sorted(rows) == [("PENDING", 0), ("PENDING", 0), ("RUNNING", 1)]


@pytest.mark.slow
def test_a_locked_due_row_does_not_keep_an_idle_worker_busy(worker, tmp_path):
    if connection.vendor == "sqlite":
        return  # SQLite has no row locks
    tally = tmp_path / "statements"
    handle = tasks.noop.schedule(0.5)
    other = connections["default"].copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [handle.id])
        began = time.monotonic()
        worker(COUNT_STATEMENTS=str(tally))
        settled = time.monotonic() + 1
        wait_until(lambda: time.monotonic() > settled)
        assert tally.stat().st_size < 200 * (time.monotonic() - began)
    finally:
        other.rollback()
        other.close()

    assert handle.get(timeout=20).is_ok()


def test_a_backoff_that_raises_system_exit_fails_its_task_and_frees_the_slot(drain):
    handle, good = tasks.bad_backoff.send(), tasks.add.send(1)

    drain(threads=1)

    assert handle.get(0).err.message == "first"
    assert good.value(0) == 2


@pytest.mark.slow
def test_an_asyncio_task_that_raises_system_exit_does_not_end_the_event_loop(worker):
    process = worker()

    first = tasks.leave_a_bomb.send().get(timeout=20)
    second = tasks.awrite.send("after").get(timeout=20)

    assert first.is_ok()
    assert second.ok == "after"
    assert process.process.poll() is None


@pytest.mark.slow
def test_a_bodys_subprocess_does_not_read_the_supervisors_commands(worker):
    process = worker()

    assert tasks.read_input.send().value(timeout=20) == 0
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_an_inline_drain_continues_past_max_tasks_per_child(drain):
    tasks.noop.send_many({} for _ in range(30))

    drain(max_tasks_per_child=10, threads=2)

    assert Task.objects.completed().count() == 30


def test_only_one_of_two_ended_tasks_with_the_same_unique_key_is_retried():
    unique = tasks.noop.with_options(unique_key="shared")
    for _ in range(2):
        unique.send().cancel()

    assert Task.objects.all().retry() == 1
    assert sorted(Task.objects.values_list("status", flat=True)) == ["CANCELLED", "PENDING"]


def test_a_keyword_named_like_a_serializer_tag_stays_a_keyword(drain, settings):
    backend = settings.TASKS["default"]
    settings.TASKS = {"default": {**backend, "OPTIONS": {"serializer": "rich"}}}
    handle = tasks.echo.send(**{"$type": "dataclass", "class": "antigravity.X", "value": {}})

    drain()

    assert handle.value(0) == {"args": [], "kwargs": {"$type": "dataclass", "class": "antigravity.X", "value": {}}}


def test_a_result_is_stored_although_its_attempt_exists_already(drain):
    """Only a change by hand makes such a row: attempts are inserted without a look for one."""
    handles = [tasks.add.send(number) for number in range(3)]
    now = timezone.now()
    times = {"due_at": now, "started_at": now, "finished_at": now}
    TaskAttempt.objects.create(task_id=handles[1].id, attempt=1, outcome="FAILED", **times)

    drain()

    assert [handle.value(0) for handle in handles] == [1, 2, 3]
    outcomes = [Task.objects.get(pk=handle.id).attempts.get().outcome for handle in handles]
    assert outcomes == ["COMPLETED", "FAILED", "COMPLETED"]


def test_the_newer_of_two_ends_of_a_task_in_one_tick_is_stored():
    store = WorkerStore(WorkerConfig.of("default"), WorkerInfo("me", "host", 1))
    handle = tasks.noop.send()
    with transaction.atomic():
        (older,) = Task.objects.claim("me", start=0, prefetch=1)
    store.release([older], TaskStatus.CLAIMED)
    with transaction.atomic():
        (newer,) = Task.objects.claim("me", start=1)

    with transaction.atomic():
        store.save(
            [Completion(handle.id, newer.claim, '{"ok":"newer"}'), Completion(handle.id, older.claim, '{"ok":"older"}')]
        )

    assert handle.get(0).ok == "newer"
