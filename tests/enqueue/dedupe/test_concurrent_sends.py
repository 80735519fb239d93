"""Up to fifty threads send the same call at once, and workers claim it meanwhile."""

import os
import signal

import pytest
from django.db import connection

from horsies_django import TaskStatus, Unique, UniqueConflict, reclaim
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue.dedupe import jobs
from tests.enqueue.test_repeated_sends import run_concurrently
from tests.jobs.models import Entry
from tests.worker.execution.jobs import write_entry


@pytest.fixture
def senders():
    """Return the number of sending threads. On SQLite they take turns at one lock: fifty would wait too long."""
    return 50 if connection.vendor == "postgresql" else 8


def unique_note(**options):
    return jobs.note.with_options(unique=Unique(by=("name",), **options))


@pytest.mark.sqlite
@pytest.mark.slow
@pytest.mark.parametrize("until", ["started", "done", "success", None])
def test_skip_creates_one_task_and_gives_every_sender_its_id(transactional_db, senders, until):
    job = unique_note(until=until, period=None if until else 60)

    results = run_concurrently(senders, lambda number: job.send("a", str(number)))

    assert {handle.id for handle in results} == {Task.objects.get().pk}
    assert [handle.replayed for handle in results].count(False) == 1


@pytest.mark.sqlite
@pytest.mark.slow
def test_raise_creates_one_task_and_gives_every_other_sender_an_error(transactional_db, senders):
    results = run_concurrently(senders, lambda number: unique_note(on_conflict="raise").send("a", str(number)))

    errors = [result for result in results if isinstance(result, UniqueConflict)]
    assert len(errors) == senders - 1
    assert {error.task_id for error in errors} == {Task.objects.get().pk}


@pytest.mark.slow
@pytest.mark.parametrize("unique", [Unique(by=("name",), on_conflict="replace"), Unique.debounce(60, by=("name",))])
def test_replace_and_debounce_keep_one_task_with_the_arguments_of_the_last_call(transactional_db, senders, unique):
    job = jobs.note.with_options(unique=unique)

    results = run_concurrently(senders, lambda number: job.send("a", str(number)))
    last = job.send("a", "last")

    assert not any(isinstance(result, Exception) for result in results), results
    row = Task.objects.get()
    assert {handle.id for handle in [*results, last]} == {row.pk}
    assert [handle.replayed for handle in results].count(False) == 1
    assert row.args == ["a", "last"]


@pytest.mark.slow
def test_one_of_fifty_senders_takes_over_an_expired_key(transactional_db, senders):
    job = unique_note(period=60)
    job.send("a")
    Task.objects.update(unique_expires_at=Task.objects.get().sent_at)

    results = run_concurrently(senders, lambda number: job.send("a", str(number)))

    assert len({handle.id for handle in results}) == 1
    assert [handle.replayed for handle in results].count(False) == 1
    assert set(Task.objects.values_list("unique_until", flat=True)) == {"released", "period"}


@pytest.mark.slow
def test_concurrent_send_many_calls_neither_deadlock_nor_duplicate_tasks(transactional_db):
    job, names = unique_note(), [f"n{number}" for number in range(40)]
    orders = [names, names[::-1], sorted(names), names[20:] + names[:20]]

    results = run_concurrently(4, lambda number: job.send_many({"name": name} for name in orders[number]))

    assert not any(isinstance(result, Exception) for result in results), results
    assert Task.objects.count() == len(names)
    assert sum(not handle.replayed for handles in results for handle in handles) == len(names)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_concurrent_send_many_calls_that_replace_tasks_do_not_deadlock(transactional_db):
    job, names = (
        jobs.note.with_options(unique=Unique.debounce(60, by=("name",))),
        [f"n{number}" for number in range(90)],
    )
    orders = [names, names[::-1], names[40:] + names[:40], names[::2] + names[1::2]]

    def send(number):
        # Names that the other senders have not inserted yet, have inserted, or are about to insert.
        for turn in range(6):
            batch = [f"{turn // 3} {name}" for name in orders[number][turn * 5 :]]
            job.send_many({"name": name, "text": f"{number} {turn}"} for name in batch)

    results = run_concurrently(4, send)

    assert results == [None] * 4
    assert Task.objects.count() == 180


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_concurrent_send_many_calls_of_two_chunks_do_not_deadlock(transactional_db):
    job, names = unique_note(), [f"n{number:06}" for number in range(10_400)]

    orders = [names, names[::-1]]
    results = run_concurrently(2, lambda number: job.send_many({"name": name} for name in orders[number]))

    assert not any(isinstance(result, Exception) for result in results), results
    assert Task.objects.count() == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replace", "debounce"])
def test_the_last_call_is_not_lost_while_workers_claim_its_task(worker, senders, name):
    """Each sender writes before it sends, so that a body that starts after the send sees what was written."""
    worker("--threads", "4")
    worker("--threads", "4")

    def write_and_send(number):
        for turn in range(5):
            write_entry(f"wrote {number} {turn}")
            jobs.COUNTERS[name].send("a")

    results = run_concurrently(senders // 4, write_and_send)

    assert set(results) == {None}
    wait_until(lambda: not Task.objects.exclude(status=TaskStatus.COMPLETED).exists(), limit=60)
    written = Entry.objects.filter(key__startswith="wrote ").count()
    assert written == senders // 4 * 5
    assert max(Task.objects.values_list("result__ok", flat=True)) == written
    assert Task.objects.count() <= written


@pytest.mark.slow
def test_a_task_reclaimed_from_a_killed_worker_does_not_block_its_successor(worker, tmp_path):
    gate = tmp_path / "gate"
    first = jobs.hold_until_started.send("a", str(gate))
    killed = worker("--threads", "1")
    wait_until(lambda: Entry.objects.filter(key="begun a").exists())
    second = jobs.hold_until_started.send("a", str(gate))
    assert (second.replayed, jobs.hold_until_started.send("a", str(gate))) == (False, second)

    os.killpg(killed.process.pid, signal.SIGKILL)
    killed.wait()
    gate.touch()
    wait_until(lambda: reclaim(0.5) == 1)  # no reaper's thresholds: a stalled worker would pass for dead
    worker("--threads", "1")

    wait_until(lambda: not Task.objects.exclude(status=TaskStatus.COMPLETED).exists(), limit=40)
    rows = Task.objects.in_bulk()
    assert (rows[first.id].retry_count, rows[second.id].retry_count) == (1, 0)
    assert rows[first.id].unique_until == "released"


@pytest.mark.slow
def test_a_failing_task_keeps_its_key_during_and_after_its_retry(worker):
    worker("--threads", "2")
    first = jobs.always_fails.send("a")

    wait_until(lambda: Entry.objects.filter(key="failed a").exists())
    assert jobs.always_fails.send("a").id == first.id
    wait_until(lambda: first.status() == TaskStatus.FAILED)

    assert jobs.always_fails.send("a").id == first.id
    assert Entry.objects.filter(key="failed a").count() == 2
