"""``--state-dir``: after the death of all processes, the next worker knows which bodies had begun."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction

from horsies_django.models import Task, TaskAttempt, Worker
from horsies_django.worker import state_files
from horsies_django.worker.started_registry import BOOT_ID_AT
from tests.chaos.fleet import state
from tests.conftest import wait_until
from tests.faults.jobs import ablock
from tests.jobs import tasks

pytestmark = pytest.mark.once


@pytest.mark.slow
@pytest.mark.parametrize("supervisor_outlives", [False, True])
@pytest.mark.django_db(transaction=True)
def test_after_a_kill_of_all_processes_the_next_worker_charges_only_the_task_that_had_begun(
    worker, gate, tmp_path, supervisor_outlives
):
    folder = tmp_path / "state"
    with transaction.atomic():  # so that one claim takes them all
        blocker = ablock.with_options(priority=1).send(str(tmp_path / "begun"), str(gate))
        behind = [tasks.awrite.send("behind") for _ in range(5)]
    first = worker("--state-dir", str(folder))
    wait_until(lambda: (tmp_path / "begun").exists() and Task.objects.filter(status="RUNNING").count() == 6)

    first.signal(signal.SIGSTOP if supervisor_outlives else signal.SIGKILL)
    wait_until(lambda: not supervisor_outlives or state(first.process.pid) == "T")
    os.kill(Worker.objects.get().pid, signal.SIGKILL)
    wait_until(lambda: supervisor_outlives or first.process.poll() is not None)
    assert len(list(folder.iterdir())) == 1
    second = worker("--state-dir", str(folder))
    if supervisor_outlives:
        assert Task.objects.filter(status="RUNNING").count() == 6  # the supervisor still holds the proof
        first.process.kill()

    assert blocker.get(20).err.error_code == "WORKER_CRASHED"
    assert [handle.value(timeout=20) for handle in behind] == ["behind"] * 5
    assert not TaskAttempt.objects.exclude(task=blocker.id).exclude(attempt=1, outcome="COMPLETED").exists()
    wait_until(lambda: len(list(folder.iterdir())) == 1)  # its own
    second.signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert list(folder.iterdir()) == []


def dead(folder):
    """Return the ids of the runners whose files are evidence."""
    return [state.worker_id for state in state_files.find_dead(folder)]


def truncate(path):
    os.truncate(path, 100)


def reboot(path):
    with open(path, "r+b") as file:
        file.seek(BOOT_ID_AT)
        file.write(b"another")


def link(path):
    os.rename(path, f"{path}.other")
    os.symlink(f"{path}.other", path)
    os.truncate(f"{path}.other", 0)


def planted(path):
    os.unlink(path)
    os.mkfifo(path)


def hard_link(path):
    os.link(path, os.path.join(os.path.dirname(os.path.dirname(path)), "elsewhere"))


@pytest.mark.parametrize("damage", [truncate, reboot, link, planted, hard_link])
def test_a_file_that_is_short_planted_or_of_another_boot_is_no_evidence(tmp_path, damage):
    folder = tmp_path / "state"
    state_files.prepare(folder)
    os.close(state_files.create(folder, "host-1"))
    path = folder / "host-1.horsies-state"
    assert dead(folder) == ["host-1"]

    damage(path)

    assert dead(folder) == []


def test_a_file_is_no_evidence_while_a_process_of_its_worker_lives(tmp_path):
    state_files.prepare(tmp_path / "state")
    descriptor = state_files.create(tmp_path / "state", "host-1")
    assert dead(tmp_path / "state") == []

    os.close(descriptor)

    assert dead(tmp_path / "state") == ["host-1"]


@pytest.mark.slow
def test_a_search_for_dead_workers_deletes_no_file_that_another_worker_creates(tmp_path):
    folder = tmp_path / "state"
    state_files.prepare(folder)
    is_done = Event()

    def search():
        while not is_done.is_set():
            dead(folder)

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search) for _ in range(4)]
        try:
            for number in range(200):
                descriptor = state_files.create(folder, f"host-{number}")
                assert os.fstat(descriptor).st_nlink == 1
                state_files.remove(folder, f"host-{number}")
                os.close(descriptor)
        finally:
            is_done.set()
    assert [one.result() for one in searches] == [None] * 4


def test_files_of_others_are_left_alone(tmp_path):
    folder = tmp_path / "state"
    state_files.prepare(folder)
    (folder / "letter.txt").write_text("Dear")
    (folder / "host-1").touch()
    os.mkfifo(folder / "pipe")

    assert dead(folder) == []

    assert {path.name for path in folder.iterdir()} == {"letter.txt", "host-1", "pipe"}


@pytest.mark.parametrize("kind", ["link", "open to others", "file", "no parent"])
def test_a_state_directory_that_others_could_write_to_is_refused(tmp_path, kind):
    folder = tmp_path / "state"
    if kind == "link":
        (tmp_path / "real").mkdir(0o700)
        folder.symlink_to(tmp_path / "real")
    elif kind == "open to others":
        folder.mkdir(0o755)
    elif kind == "file":
        folder.touch(0o700)
    else:
        folder = folder / "missing" / "state"

    with pytest.raises(ImproperlyConfigured, match=r"--state-dir: '.*state' can't be used: .*; allowed: a directory"):
        state_files.prepare(str(folder))
