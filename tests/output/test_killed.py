"""Output while runners are killed, workers stop, and connections break: complete, in order, and nothing twice."""

import random
import time

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskOutput
from tests.conftest import wait_until
from tests.output import jobs
from tests.steps.test_batches_killed import kill_a_runner

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 50


def by_attempt(task_id):
    """Return what each attempt of a task has written, in the order of the sequences, which have no gaps."""
    rows = list(TaskOutput.objects.filter(task=task_id).order_by("sequence").values_list("sequence", "attempt", "data"))
    assert [sequence for sequence, *_ in rows] == list(range(1, len(rows) + 1))
    written = {}
    for _, attempt, (of_attempt, value) in rows:
        assert attempt == of_attempt
        assert attempt >= max(written, default=attempt)
        written.setdefault(attempt, []).append(value)
    return written


@pytest.mark.slow
def test_what_was_stored_before_a_kill_is_there_and_the_retry_comes_after_it(worker, gate):
    worker("-v0")
    handle = jobs.counts.send(str(gate), COUNT)
    wait_until(lambda: len(handle.output()) == COUNT)

    kill_a_runner(Task.objects.all(), set())

    wait_until(lambda: len(handle.output()) == 2 * COUNT)
    gate.touch()
    wait_until(lambda: handle.status() == TaskStatus.COMPLETED)
    numbers = list(range(COUNT))
    assert by_attempt(handle.id) == {1: numbers, 2: [*numbers, "end"]}


@pytest.mark.slow
def test_a_worker_that_stops_stores_what_a_body_has_written_just_before(worker, gate, entries):
    process = worker("-v0", "--shutdown-timeout", "0")
    handle = jobs.counts.send(str(gate), COUNT)
    wait_until(lambda: entries() == ["written 1"])

    process.stop()

    assert by_attempt(handle.id) == {1: list(range(COUNT))}


def check_all(handles):
    """Each attempt has written the first of its numbers, and the last one all."""
    numbers = [*range(COUNT), "end"]
    for handle in handles:
        *killed, complete = by_attempt(handle.id).values()
        assert complete == numbers
        assert all(written == numbers[: len(written)] for written in killed)


@pytest.mark.slow
def test_killed_runners_lose_at_most_the_last_second_and_repeat_nothing(worker, tmp_path, gate):
    worker("--processes", "2", "--threads", "4", "-v0", runners=2)
    handles = [jobs.counts.send(str(gate), COUNT) for _ in range(40)]
    killed: set[int] = set()

    for _ in range(10):
        wait_until(lambda: Task.objects.filter(status=TaskStatus.RUNNING).exists())
        time.sleep(random.uniform(0.1, 0.9))
        kill_a_runner(Task.objects.all(), killed)
        Task.objects.filter(status=TaskStatus.FAILED).retry()
    gate.touch()

    def have_ended():
        Task.objects.filter(status=TaskStatus.FAILED).retry()
        return Task.objects.completed().count() == len(handles)

    wait_until(have_ended, 120)
    assert len(killed) > 5
    check_all(handles)


@pytest.mark.slow
def test_lost_connections_lose_and_repeat_nothing(worker, gate):
    if connection.vendor == "sqlite":
        pytest.skip("no connections to lose")
    worker("--threads", "8", "-v0")
    handles = [jobs.counts.send(str(gate), COUNT) for _ in range(40)]

    for _ in range(30):
        time.sleep(random.uniform(0.05, 0.3))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND datname = current_database() AND application_name LIKE 'horsies %'"  # not those of bodies
            )
    gate.touch()

    wait_until(lambda: Task.objects.completed().count() == len(handles), 120)
    check_all(handles)
