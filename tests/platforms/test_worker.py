"""``horsies_worker`` on any system: ``test_simulated.py`` runs these tests without what only Linux has."""

import os
import signal
import sys

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

IS_POSIX = hasattr(os, "killpg")

#: What the simulated system calls itself.
PLATFORMS = {"macos": "darwin", "windows": "win32"}


def test_a_worker_runs_functions_and_coroutines_and_ctrl_c_ends_it_with_status_0(worker):
    process = worker("--threads", "2")
    handles = [tasks.add.send(1), tasks.awrite.send("coroutine"), tasks.flaky.send("retried", 1)]

    assert handles[0].value(timeout=30) == 2
    assert handles[1].value(timeout=30) == "coroutine"
    assert handles[2].get(timeout=30).is_ok()
    process.signal(signal.SIGINT)

    assert process.wait() == 0, process.output
    assert not Worker.objects.exists()
    assert "Traceback" not in process.output


def test_this_process_and_the_one_of_the_bodies_are_those_of_the_simulated_system(worker):
    expected = PLATFORMS.get(os.environ.get("SIMULATE", ""), sys.platform)
    worker()

    assert sys.platform == expected
    assert tasks.platform.send().value(timeout=30) == expected


def test_its_tasks_run_in_processes_of_their_own_where_the_system_has_process_groups(worker):
    process = worker(*(["--processes", "2"] if IS_POSIX else []), runners=2 if IS_POSIX else 1)

    assert (process.process.pid in Worker.objects.values_list("pid", flat=True)) is not IS_POSIX


def start_a_body(gate):
    handle = tasks.hold.send("held", str(gate))
    wait_until(lambda: Entry.objects.filter(key="held").exists())
    return handle


def test_a_stop_waits_for_the_running_body(worker, gate):
    process = worker()
    handle = start_a_body(gate)

    process.signal(signal.SIGINT)
    wait_until(lambda: "worker stopping" in process.output)
    gate.touch()

    assert handle.value(timeout=30) == "held"
    assert process.wait() == 0


def test_a_second_stop_ends_the_running_body(worker, gate):
    process = worker()
    handle = start_a_body(gate)

    process.signal(signal.SIGINT)
    wait_until(lambda: "worker stopping" in process.output)
    process.signal(signal.SIGINT)

    assert process.wait() == 0
    assert handle.status() == TaskStatus.FAILED


def test_a_worker_that_reached_its_limit_of_tasks_goes_on(worker):
    process = worker("--max-tasks-per-child", "2")

    handles = tasks.add.send_many({"a": number} for number in range(7))

    assert [handle.value(timeout=30) for handle in handles] == list(range(1, 8))
    assert process.process.poll() is None


def test_a_drain_ends_with_status_0(manage):
    tasks.write.send("drained")

    assert manage("horsies_worker", "--drain", "--processes", "2").wait() == 0
    assert Entry.objects.get().key == "drained"


@pytest.mark.skipif(IS_POSIX, reason="these work where the system has process groups")
def test_what_needs_a_supervisor_is_ignored_with_a_warning_and_a_reload_is_refused(manage, worker, tmp_path):
    process = worker("--max-memory-mb", "1000", "--state-dir", str(tmp_path / "state"))
    reload = manage("horsies_worker", "--reload")

    assert "options ignored" in process.output
    assert "names=max_memory_mb,state_dir" in process.output
    assert reload.wait() == 2
    assert "needs signals" in reload.output
