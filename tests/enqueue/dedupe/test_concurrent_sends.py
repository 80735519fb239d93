"""Fifty who send the same at the same time, and workers that take it meanwhile."""

import os
import signal

import pytest
from django.db import connection

from horsies_django import TaskStatus, Unique, UniqueConflict, reclaim
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue.dedupe import jobs
from tests.enqueue.test_repeated_sends import at_once
from tests.jobs.models import Entry
from tests.worker.execution.jobs import leave


@pytest.fixture
def senders():
    """SQLite's writers take turns at one lock, for which fifty would wait too long."""
    return 50 if connection.vendor == "postgresql" else 8


def unique(**options):
    return jobs.note.with_options(unique=Unique(by=("name",), **options))


@pytest.mark.slow
@pytest.mark.parametrize("until", ["started", "done", "success", None])
def test_skip_creates_one_task_and_gives_every_sender_its_id(transactional_db, senders, until):
    job = unique(until=until, period=None if until else 60)

    found = at_once(senders, lambda number: job.send("a", str(number)))

    assert {handle.id for handle in found} == {Task.objects.get().pk}
    assert [handle.replayed for handle in found].count(False) == 1


@pytest.mark.slow
def test_raise_creates_one_task_and_gives_every_other_sender_an_error(transactional_db, senders):
    found = at_once(senders, lambda number: unique(on_conflict="raise").send("a", str(number)))

    errors = [one for one in found if isinstance(one, UniqueConflict)]
    assert len(errors) == senders - 1
    assert {error.task_id for error in errors} == {Task.objects.get().pk}


@pytest.mark.slow
@pytest.mark.parametrize("unique", [Unique(by=("name",), on_conflict="replace"), Unique.debounce(60, by=("name",))])
def test_replace_and_debounce_keep_one_task_with_the_arguments_of_the_last_call(transactional_db, senders, unique):
    job = jobs.note.with_options(unique=unique)

    found = at_once(senders, lambda number: job.send("a", str(number)))
    last = job.send("a", "last")

    row = Task.objects.get()
    assert {handle.id for handle in [*found, last]} == {row.pk}
    assert [handle.replayed for handle in found].count(False) == 1
    assert row.args == ["a", "last"]


@pytest.mark.slow
def test_one_of_fifty_senders_takes_over_an_expired_key(transactional_db, senders):
    job = unique(period=60)
    job.send("a")
    Task.objects.update(unique_expires_at=Task.objects.get().sent_at)

    found = at_once(senders, lambda number: job.send("a", str(number)))

    assert len({handle.id for handle in found}) == 1
    assert [handle.replayed for handle in found].count(False) == 1
    assert set(Task.objects.values_list("unique_until", flat=True)) == {"released", "period"}


@pytest.mark.slow
def test_concurrent_send_many_calls_neither_deadlock_nor_duplicate_tasks(transactional_db):
    job, names = unique(), [f"n{number}" for number in range(40)]
    turned = [names, names[::-1], sorted(names), names[20:] + names[:20]]

    found = at_once(4, lambda number: job.send_many({"name": name} for name in turned[number]))

    assert all(isinstance(one, list) for one in found), found
    assert Task.objects.count() == len(names)
    assert sum(not handle.replayed for handles in found for handle in handles) == len(names)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="one writes there at a time")
def test_concurrent_send_many_calls_that_replace_tasks_do_not_deadlock(transactional_db):
    job, names = (
        jobs.note.with_options(unique=Unique.debounce(60, by=("name",))),
        [f"n{number}" for number in range(90)],
    )
    turned = [names, names[::-1], names[40:] + names[:40], names[::2] + names[1::2]]

    def send(number):
        # What the others have not inserted yet, what they have, and what they are about to.
        for turn in range(6):
            some = [f"{turn // 3} {name}" for name in turned[number][turn * 5 :]]
            job.send_many({"name": name, "text": f"{number} {turn}"} for name in some)

    found = at_once(4, send)

    assert found == [None] * 4
    assert Task.objects.count() == 180


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="one writes there at a time")
def test_concurrent_send_many_calls_of_two_chunks_do_not_deadlock(transactional_db):
    job, names = unique(), [f"n{number:06}" for number in range(10_400)]

    found = at_once(2, lambda number: job.send_many({"name": name} for name in (names if number else names[::-1])))

    assert all(isinstance(one, list) for one in found), found
    assert Task.objects.count() == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replace", "debounce"])
def test_the_last_call_is_not_lost_while_workers_claim_its_task(worker, senders, name):
    """Each writes before it sends, so that a body which begins after a call sees what was written before it."""
    worker("--threads", "4")
    worker("--threads", "4")

    def write_and_send(number):
        for turn in range(5):
            leave(f"wrote {number} {turn}")
            jobs.LOOKS[name].send("a")

    found = at_once(senders // 4, write_and_send)

    assert set(found) == {None}
    wait_until(lambda: not Task.objects.exclude(status=TaskStatus.COMPLETED).exists(), limit=60)
    written = Entry.objects.filter(key__startswith="wrote ").count()
    assert written == senders // 4 * 5
    assert max(Task.objects.values_list("result__ok", flat=True)) == written
    assert Task.objects.count() <= written


@pytest.mark.slow
def test_a_task_reclaimed_from_a_killed_worker_does_not_block_its_successor(worker, tmp_path):
    gate = tmp_path / "gate"
    first = jobs.hold_until_started.send("a", str(gate))
    doomed = worker("--threads", "1")
    wait_until(lambda: Entry.objects.filter(key="begun a").exists())
    second = jobs.hold_until_started.send("a", str(gate))
    assert (second.replayed, jobs.hold_until_started.send("a", str(gate))) == (False, second)

    os.killpg(doomed.process.pid, signal.SIGKILL)
    doomed.wait()
    gate.touch()
    wait_until(lambda: reclaim(0.5) == 1)  # no thresholds of a reaper: who stands still for as long is no dead one
    worker("--threads", "1")

    wait_until(lambda: not Task.objects.exclude(status=TaskStatus.COMPLETED).exists(), limit=40)
    rows = Task.objects.in_bulk()
    assert (rows[first.id].retry_count, rows[second.id].retry_count) == (1, 0)
    assert rows[first.id].unique_until == "released"


@pytest.mark.slow
def test_a_failing_task_keeps_its_key_during_and_after_its_retry(worker):
    worker("--threads", "2")
    first = jobs.breaks.send("a")

    wait_until(lambda: Entry.objects.filter(key="broke a").exists())
    assert jobs.breaks.send("a").id == first.id
    wait_until(lambda: first.status() == TaskStatus.FAILED)

    assert jobs.breaks.send("a").id == first.id
    assert Entry.objects.filter(key="broke a").count() == 2
