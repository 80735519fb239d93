"""The heartbeat file is as old as the time for which the worker is not healthy."""

import os
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from horsies_django.models import Worker
from tests.conftest import wait_until

pytestmark = pytest.mark.once

#: Seconds without a pulse after which a runner is not healthy, and some for a busy machine.
OLD = 5.0


def age_of(path):
    return time.time() - path.stat().st_mtime


@pytest.mark.slow
def test_the_file_has_the_time_while_the_worker_runs_and_is_gone_after_a_stop(worker, tmp_path):
    path = tmp_path / "beat"
    path.write_text("of an earlier process")
    process = worker(HORSIES_WORKER_HEARTBEAT_FILE=str(path))

    first = wait_until(lambda: path.exists() and path.read_text() != "of an earlier process" and path.read_text())
    assert datetime.now(UTC) - datetime.fromisoformat(first.strip()) < timedelta(seconds=30)
    wait_until(lambda: path.read_text() != first)
    wait_until(lambda: list(tmp_path.iterdir()) == [path])  # the next file is written beside it
    process.signal(signal.SIGTERM)

    assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_links_that_others_plant_beside_the_file_are_not_followed(worker, tmp_path):
    path, private = tmp_path / "beat", tmp_path / "private"
    private.write_text("untouched")
    path.symlink_to(private)
    process = worker("--heartbeat-file", str(path))
    (tmp_path / f".beat.{process.process.pid}").symlink_to(private)

    first = wait_until(lambda: path.exists() and not path.is_symlink() and path.read_text())
    wait_until(lambda: path.read_text() != first)

    assert private.read_text() == "untouched"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["runner", "supervisor"])
def test_the_file_gets_old_while_the_only_runner_or_the_supervisor_is_suspended(worker, tmp_path, stopped):
    path = tmp_path / "beat"
    process = worker("--heartbeat-file", str(path))
    wait_until(path.exists)
    pid = Worker.objects.get().pid if stopped == "runner" else process.process.pid

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: age_of(path) > OLD)
    finally:
        os.kill(pid, signal.SIGCONT)

    wait_until(lambda: age_of(path) < OLD - 2)


@pytest.mark.parametrize("place", ["missing/beat", "."], ids=["no folder", "a folder"])
def test_a_path_that_can_not_be_written_is_an_error_at_the_start(manage, tmp_path, place):
    process = manage("horsies_worker", "--heartbeat-file", str(tmp_path / place))

    assert process.wait(30) == 1
    assert "--heartbeat-file: " in process.output
    assert "can't be written: " in process.output
    assert "allowed: a file, in a folder that exists" in process.output
    assert not Worker.objects.exists()
