"""Processes that bodies start: signals work in them, and they do not outlive their runner."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.chaos.fleet import children, is_alive
from tests.conftest import ROOT, database_url, wait_until
from tests.faults import jobs
from tests.jobs.models import Entry
from tests.settings import MODULES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.mark.slow
def test_a_body_can_terminate_a_process_that_it_has_forked(worker):
    worker("--threads", "2")

    assert jobs.terminate_a_child.send().value(timeout=60) == -signal.SIGTERM


#: Two ways to drain: a process that is a worker's alone, and one of the caller's.
DRAINS = pytest.mark.parametrize(
    "command",
    [
        ("horsies_worker", "--drain"),
        ("shell", "-c", "from django.core.management import call_command; call_command('horsies_worker', drain=True)"),
    ],
    ids=["the command", "called from Python"],
)


@pytest.mark.slow
@DRAINS
def test_a_body_of_a_drain_can_terminate_a_process_that_it_has_forked(manage, command):
    # Python loses a signal that comes before it has set up the new process, unless a worker has blocked it.
    handle = jobs.terminate_a_child.send(at_once=command[0] == "horsies_worker")
    process = manage(*command)

    assert process.wait(60) == 0, process.output
    assert handle.value(timeout=0) == -signal.SIGTERM


@pytest.mark.slow
def test_a_process_forked_by_a_body_has_the_default_signal_handlers(worker):
    worker("--threads", "2")

    assert jobs.handlers_in_a_child.send().value(timeout=40) == ["SIG_DFL", "default_int_handler"]


@pytest.mark.slow
@DRAINS
def test_a_process_forked_by_a_body_of_a_drain_has_the_handlers_from_before_the_worker(manage, command):
    handle = jobs.handlers_in_a_child.send()

    assert manage(*command).wait(60) == 0
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a job of a shell in the background
    assert handle.value(timeout=0) == ["SIG_DFL", "SIG_IGN" if is_ignored else "default_int_handler"]


@pytest.mark.slow
@DRAINS
def test_a_process_forked_by_a_body_of_a_drain_ignores_sigint_if_the_worker_was_started_so(manage, command):
    handle = jobs.handlers_in_a_child.send()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # A variable that is read at import keeps the process from being forked from one that does not ignore SIGINT.
        process = manage(*command, TEST_MODULES=",".join(MODULES))
    finally:
        signal.signal(signal.SIGINT, before)

    assert process.wait(60) == 0
    assert handle.value(timeout=0) == ["SIG_DFL", "SIG_IGN"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to the end of another")
@pytest.mark.parametrize(
    ("victim", "number"),
    [("supervisor", signal.SIGTERM), ("supervisor", signal.SIGKILL), ("runner", signal.SIGKILL)],
    ids=["the worker is stopped", "the supervisor is killed", "the runner is killed"],
)
def test_processes_that_a_body_left_behind_end_with_its_runner(worker, tmp_path, victim, number):
    gate = tmp_path / "gate"
    process = worker("--threads", "2", "--shutdown-timeout", "0.5")
    handle = jobs.leave_processes_behind.send(str(gate))
    pids = wait_until(lambda: dict(Entry.objects.values_list("key", "pid")), limit=40)
    detached = pids.pop("detached")
    try:
        if number == signal.SIGTERM:  # their body ends before its worker does
            gate.touch()
            assert handle.get(timeout=20).is_ok()
        assert all(map(is_alive, pids.values()))

        os.kill(pids["runner"] if victim == "runner" else process.process.pid, number)

        wait_until(lambda: not any(map(is_alive, pids.values())))
        assert is_alive(detached)  # it has its own session
    finally:
        for pid in filter(is_alive, [*pids.values(), detached]):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() or not shutil.which("unshare"), reason="needs root, and unshare of util-linux")
@pytest.mark.parametrize("settings", ["tests.settings", "tests.faults.reaping_settings"])
def test_a_worker_that_is_process_1_reaps_the_orphans_that_bodies_leave(transactional_db, settings):
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "manage.py", "horsies_worker"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": settings},
    )
    try:
        orphans = [jobs.leave_an_orphan.send() for _ in range(3)]
        pids = [handle.value(timeout=60) for handle in orphans]

        wait_until(lambda: all(jobs.is_reaped.send(pid).value(timeout=20) for pid in pids))
    finally:
        (first,) = children(process.pid)
        process.kill()
        process.wait()
        # Its runners die with it, a little later. Until then they could register in the tables of the next test.
        wait_until(lambda: not is_alive(first))
