"""Coroutine tasks."""

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def test_a_coroutine_runs_and_uses_the_orm(drain):
    handle = tasks.awrite.send("coroutine")

    drain()

    assert handle.value(0) == "coroutine"
    assert Entry.objects.filter(key="coroutine").exists()


def test_coroutines_run_concurrently_with_one_thread(worker):
    worker("--threads", "1", "--async-slots", "10")

    handles = tasks.await_others.send_many({"key": "others", "others": 10} for _ in range(10))

    assert [handle.value(timeout=30) for handle in handles] == [10] * 10


def test_a_drain_with_few_async_slots_runs_all_coroutines(drain):
    tasks.awrite.send_many({"key": str(number)} for number in range(20))

    drain(async_slots=2)

    assert Task.objects.completed().count() == 20


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite counts no connections")
def test_coroutines_of_a_worker_with_default_slots_leave_connections_to_others(worker, gate):
    handles = tasks.ahold.send_many({"key": "held", "gate": str(gate)} for _ in range(120))
    worker()

    wait_until(lambda: Entry.objects.count() == 20)
    with connection.cursor() as cursor:
        of_bodies = "datname = current_database() AND application_name = '' AND pid <> pg_backend_pid()"
        cursor.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {of_bodies}")
        assert cursor.fetchone() == (20,)
    gate.touch()

    assert [handle.value(timeout=60) for handle in handles] == ["held"] * 120


def test_a_coroutine_runs_while_a_function_uses_the_only_thread(worker, tmp_path):
    worker("--threads", "1", "--async-slots", "1")
    held = tasks.hold.send("held", str(tmp_path / "gate"))

    result = tasks.awrite.send("free").get(timeout=20)

    assert result.is_ok()
    assert held.status() != TaskStatus.COMPLETED
    (tmp_path / "gate").touch()
    assert held.value(timeout=20) == "held"


def test_a_coroutine_gets_its_context(drain):
    handle = tasks.acontext.send()

    drain()

    assert handle.value(0) == str(handle.id)


def test_tasks_run_even_if_is_async_is_wrong_in_their_rows(drain):
    row = Task.objects.create(task_name=tasks.awrite.module_path, args=["mistaken"], is_async=False)
    other = Task.objects.create(task_name=tasks.add.module_path, args=[1], is_async=True)

    drain()

    row.refresh_from_db()
    other.refresh_from_db()
    assert (row.result, other.result) == ({"ok": "mistaken"}, {"ok": 2})
