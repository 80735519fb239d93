"""A quiet worker finishes what it runs, claims nothing more, and stays until it is resumed or stopped."""

import os
import signal

import pytest
from django.core.management import call_command

from horsies_django import TaskStatus
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.test_stopping import send_hold

QUIET = Worker.objects.filter(quiet_since__isnull=False)

#: Runners beat often, and read their rows often where notifications do not arrive.
OFTEN = {"TEST_HEARTBEAT_MS": "200", "TEST_STALE_MS": "60000"}


def beats_again():
    """Wait for another heartbeat of every worker."""
    Worker.objects.update(last_beat_at=NowPlus(-30))
    wait_until(lambda: not Worker.objects.filter(last_beat_at__lt=NowPlus(-10)).exists(), what="heartbeats")


def by_signal(process):
    process.signal(signal.SIGTSTP)
    return lambda: process.signal(signal.SIGCONT)


def by_command(process):
    call_command("horsies_queue", "quiet", "--all", verbosity=0)
    return lambda: call_command("horsies_queue", "unquiet", *Worker.objects.values_list("pk", flat=True))


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("make_quiet", [by_signal, by_command])
def test_a_quiet_worker_finishes_its_task_and_claims_others_only_when_resumed(worker, gate, make_quiet):
    process = worker("--threads", "1", "--prefetch", "2", "--poll-interval", "0.1", **OFTEN)
    handle, _ = send_hold(gate)
    prefetched = tasks.noop.send_many({} for _ in range(2))
    wait_until(lambda: Task.objects.filter(status=TaskStatus.CLAIMED).count() == 2)

    resume = make_quiet(process)
    wait_until(lambda: Task.objects.pending().count() == 2, what="the release of the prefetched tasks")
    later = tasks.add.send(1)
    gate.touch()

    assert handle.get(timeout=20).is_ok()
    wait_until(QUIET.exists)
    beats_again()
    beats_again()
    assert {Task.objects.get(pk=task.id).attempt for task in [*prefetched, later]} == {0}
    assert Task.objects.pending().count() == 3
    assert process.process.poll() is None

    resume()

    assert later.value(timeout=20) == 2
    wait_until(lambda: not QUIET.exists())  # after a signal the row is written later


@pytest.mark.parametrize("notice", ["row", pytest.param("signal", marks=pytest.mark.slow)])
def test_a_killed_quiet_runner_is_replaced_by_a_quiet_one_and_the_other_goes_on(worker, notice):
    process = worker("--processes", "2", "--poll-interval", "0.1", runners=2, **OFTEN)
    first = Worker.objects.order_by("pk").first()
    if notice == "signal":
        os.kill(first.pid, signal.SIGTSTP)
    else:
        assert Worker.objects.filter(pk=first.pk).quiet() == 1
    wait_until(lambda: "worker quiet" in process.output)

    os.kill(first.pid, signal.SIGKILL)

    wait_until(lambda: Worker.objects.exclude(pk=first.pk).count() == 2 and not Worker.objects.filter(pk=first.pk))
    wait_until(lambda: QUIET.count() == 1)
    assert tasks.add.send(1).value(timeout=20) == 2
    (row,) = Task.objects.all()
    assert row.claimed_by_worker_id == Worker.objects.get(quiet_since=None).pk


@pytest.mark.slow
@pytest.mark.sqlite
def test_sigterm_stops_a_quiet_worker_and_sigcont_alone_resumes_nothing(worker):
    process = worker(**OFTEN)
    assert Worker.objects.all().quiet() == 1
    wait_until(lambda: "worker quiet" in process.output)

    process.signal(signal.SIGCONT)  # as after a SIGSTOP
    beats_again()
    beats_again()
    assert QUIET.count() == 1
    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert not Worker.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_drain_that_becomes_quiet_ends_as_if_nothing_were_due(manage, gate, processes):
    handle = tasks.hold.send("held", str(gate))
    process = manage("horsies_worker", "--drain", "--threads", "1", "--processes", processes)
    wait_until(Entry.objects.exists)  # RUNNING may be written before the body begins
    tasks.hold.send_many({"key": str(number), "gate": str(gate)} for number in range(4))

    process.signal(signal.SIGTSTP)
    wait_until(lambda: "worker quiet" in process.output)
    gate.touch()

    assert process.wait(30) == 0
    assert handle.status() == TaskStatus.COMPLETED
    assert Task.objects.pending().exists()


@pytest.mark.slow
def test_a_worker_whose_row_was_deleted_stays_quiet(worker):
    process = worker(**OFTEN)
    process.signal(signal.SIGTSTP)
    wait_until(QUIET.exists)

    Worker.objects.all().delete()
    wait_until(Worker.objects.exists)
    later = tasks.add.send(1)
    beats_again()

    assert QUIET.count() == 1
    assert later.status() == TaskStatus.PENDING


@pytest.mark.django_db(transaction=True)
def test_a_second_request_changes_nothing_and_a_stopping_worker_is_not_made_quiet():
    Worker.objects.register("w", "", "host", 1)
    Worker.objects.register("other", "", "host", 1)
    row = Worker.objects.filter(pk="w")

    assert [row.resume(), row.quiet(), row.quiet(), row.resume(), row.resume()] == [0, 1, 0, 1, 0]
    assert [row.request_stop(), row.quiet()] == [1, 0]
    assert not QUIET.exists()


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_returns_that_the_worker_is_quiet():
    Worker.objects.register("w", "", "host", 1)
    Worker.objects.all().quiet()

    assert Worker.objects.beat("w", 2) == "be quiet"
    assert Worker.objects.get().memory == 2
    Worker.objects.all().request_stop()
    assert Worker.objects.beat("w", 3) == "stop"
