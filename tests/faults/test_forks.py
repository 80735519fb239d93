"""Processes that bodies start: signals work there, and none of those that were forked outlives the worker."""

import os
import signal
import sys

import pytest

from tests.chaos.fleet import is_alive
from tests.conftest import wait_until
from tests.faults import jobs
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def test_19_a_body_can_terminate_the_process_that_it_has_forked(worker):
    worker("--threads", "2")

    assert jobs.terminate_a_child.send().value(timeout=60) == -signal.SIGTERM


def test_19_signals_are_the_defaults_after_a_fork_in_a_body(worker):
    worker("--threads", "2")

    assert jobs.handlers_in_a_child.send().value(timeout=40) == ["SIG_DFL", "default_int_handler"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to the end of another")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_19_processes_that_a_body_forked_and_left_behind_end_with_the_worker(worker, tmp_path, number):
    gate = tmp_path / "gate"
    process = worker("--threads", "2", "--shutdown-timeout", "0.5")
    handle = jobs.leave_processes_behind.send(str(gate))
    pids = wait_until(lambda: len(found := dict(Entry.objects.values_list("key", "pid"))) == 4 and found, limit=40)
    try:
        if number == signal.SIGTERM:  # left by a body that has ended long ago
            gate.touch()
            assert handle.get(timeout=20).is_ok()
        assert all(map(is_alive, pids.values()))

        process.signal(number)

        wait_until(lambda: not any(is_alive(pids[name]) for name in ("forked", "grandchild", "child")))
        assert is_alive(pids["program"])  # started to live on its own, maybe
    finally:
        for pid in filter(is_alive, pids.values()):
            os.kill(pid, signal.SIGKILL)
