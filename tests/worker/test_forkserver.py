"""Forked runners: they share memory, and behave like others."""

import os
import signal
import sys
from pathlib import Path

import pytest
from django.db import connection

from horsies_django.models import Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [
    pytest.mark.once,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(sys.platform != "linux", reason="runners are forked on Linux only"),
]

MEBIBYTE = 1024


def stat_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["Z", ""]


def children(parent):
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid for pid in pids if (stat := stat_of(pid))[1] == str(parent) and stat[0] != "Z"}


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def fork_server_of(process):
    (fork_server,) = [pid for pid in children(process.process.pid) if name_of(pid) == "horsies-forker"]
    return fork_server


def runners():
    return set(Worker.objects.values_list("pid", flat=True))


def pss(pid):
    """Return the proportional set size of a process in mebibytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / MEBIBYTE


def is_gone(pid):
    return stat_of(pid)[0] in "ZX"


def test_an_idle_worker_with_two_runners_uses_less_than_120_mebibytes(worker):
    process = worker("--processes", "2", "-v0", runners=2)
    tasks.noop.send().get(20)

    taken = [pss(pid) for pid in (process.process.pid, *children(process.process.pid))]

    print(f"{sum(taken):.0f} MiB: {', '.join(f'{one:.0f}' for one in taken)}")
    assert len(taken) == 4
    assert sum(taken) <= 120


def test_runners_are_named_children_of_the_supervisor(worker):
    process = worker("--processes", "2", "-v0", runners=2)

    assert runners() < children(process.process.pid)
    assert {name_of(pid) for pid in runners()} == {"horsies-runner"}


def test_each_forked_runner_has_a_separate_connection(worker):
    worker("--processes", "2", "-v0", runners=2)
    handles = tasks.write.send_many({"key": str(number)} for number in range(40))

    assert all(handle.get(20).is_ok() for handle in handles)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE application_name IN"
                " (SELECT left('horsies ' || id, 63) FROM horsies_workers)"
            )
            assert cursor.fetchone() == (2,)


@pytest.mark.parametrize("body", [tasks.hard_exit, tasks.leave_quietly])
def test_a_forked_runner_that_dies_is_replaced_and_its_task_recovered_at_once(worker, body):
    process = worker("-v0")
    first = runners()

    handle = body.send("dies")

    assert handle.get(20).err.error_code == "WORKER_CRASHED"
    assert tasks.add.send(1).value(20) == 2
    wait_until(lambda: not runners() & first)
    wait_until(lambda: "status=9" in process.output or "status=0" in process.output)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_runners_continue_and_start_without_fork_when_the_fork_server_is_lost(worker, number):
    process = worker("--processes", "2", "-v0", runners=2)
    fork_server, before = fork_server_of(process), runners()

    os.kill(fork_server, number)
    goes_on = tasks.add.send(1).value(20)
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(runners() - before) == 1, limit=40)

    assert goes_on == 2
    assert tasks.add.send(2).value(20) == 3
    wait_until(lambda: "fork server lost" in process.output)
    wait_until(lambda: is_gone(fork_server))
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_no_process_outlives_a_killed_supervisor(worker, tmp_path):
    process = worker("--processes", "2", "-v0", runners=2)
    tasks.hold.send("held", str(tmp_path / "gate"))
    wait_until(Entry.objects.exists)
    processes = children(process.process.pid)

    process.process.kill()

    assert len(processes) == 3
    wait_until(lambda: all(map(is_gone, processes)))


def test_a_stopped_worker_leaves_no_processes_or_rows(worker):
    process = worker("--processes", "2", "-v0", runners=2)
    processes = children(process.process.pid)

    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert process.output == ""
    assert all(map(is_gone, processes))
    assert not Worker.objects.exists()


def test_a_signal_to_the_process_group_stops_the_worker_gracefully(worker, tmp_path):
    gate = tmp_path / "gate"
    process = worker("--processes", "2", "-v0", runners=2)
    handle = tasks.hold.send("held", str(gate))
    wait_until(Entry.objects.exists)

    os.killpg(process.process.pid, signal.SIGTERM)
    os.killpg(process.process.pid, signal.SIGINT)
    gate.touch()

    process.wait(20)
    assert Task.objects.get(pk=handle.id).status in ("COMPLETED", "FAILED")
    assert TaskAttempt.objects.count() == 1
    assert not Worker.objects.exists()


def test_replacement_runners_are_forked(worker):
    process = worker("--max-tasks-per-child", "1", "-v0")
    handles = [tasks.write.send(str(number)) for number in range(5)]

    assert all(handle.get(20).is_ok() for handle in handles)
    assert Entry.objects.values("pid").distinct().count() == 5
    wait_until(lambda: {name_of(pid) for pid in children(process.process.pid)} == {"horsies-forker", "horsies-runner"})


@pytest.mark.slow
def test_no_fork_starts_runners_without_a_fork_server(worker):
    process = worker("--no-fork", "-v0")

    assert children(process.process.pid) == runners()
    assert b"horsies_django.worker.child" in Path(f"/proc/{runners().pop()}/cmdline").read_bytes()
