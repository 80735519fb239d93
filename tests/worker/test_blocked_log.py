"""A log that takes no more lines: stderr is a pipe that is not read, or a handler of the project blocks."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from horsies_django.models import Task, Worker
from horsies_django.worker import console_logging
from tests.chaos.fleet import is_alive
from tests.conftest import ROOT, database_url, wait_until
from tests.jobs import tasks
from tests.worker.test_heartbeat_file import OLD, age_of

pytestmark = [
    pytest.mark.once,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe can be set on Linux only"),
]

#: Tasks whose log lines fill the pipe many times.
MANY = 400


@pytest.fixture
def unread(transactional_db):
    """Start commands whose output is a small pipe; return the process and the pipe's other end."""
    started = []

    def start(*arguments, **environment):
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4_096)
        complete = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
        process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**complete, **environment},
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
        os.close(writing)
        started.append((process, reading))
        return process, reading

    yield start
    for process, reading in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(reading)


def read_available(reading):
    """Return what is in the pipe now."""
    os.set_blocking(reading, False)
    pieces = []
    with suppress(BlockingIOError):
        while piece := os.read(reading, 65_536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def read_all(reading):
    with os.fdopen(os.dup(reading)) as pipe:
        return pipe.read()


@pytest.mark.slow
def test_tasks_run_and_a_worker_stops_while_its_output_is_not_read(unread):
    tasks.noop.send_many({} for _ in range(MANY))
    process, reading = unread("horsies_worker", "--processes", "2")

    wait_until(lambda: Task.objects.completed().count() == MANY, limit=60)
    crashing = tasks.hard_exit.send("dies")  # the supervisor logs that, too
    assert crashing.get(timeout=40).err.error_code == "WORKER_CRASHED"
    assert tasks.add.send(1).value(timeout=40) == 2
    process.send_signal(signal.SIGTERM)

    assert process.wait(40) == 0
    assert "worker ready id=" in read_all(reading)  # whatever came when the pipe was full is lost


@pytest.mark.slow
def test_a_worker_counts_the_log_lines_that_an_unread_pipe_could_not_take(unread):
    tasks.noop.send_many({} for _ in range(MANY))
    _, reading = unread("horsies_worker")
    wait_until(lambda: Task.objects.completed().count() == MANY, limit=60)
    tasks.noop.send().value(timeout=20)  # by now the lines of the others are written or lost
    output = [read_available(reading)]  # makes room for further lines
    last = tasks.noop.send()

    def last_task_is_logged():
        output.append(read_available(reading))
        return f"task completed id={last.id}" in "".join(output)

    wait_until(last_task_is_logged)

    lines = "".join(output).splitlines()
    counts = [int(line.rpartition("=")[2]) for line in lines if "WARNING horsies_django.worker log lines lost" in line]
    written = [line for line in lines if " task started " in line or " task completed " in line]
    assert counts
    assert 2 * MANY + 4 <= len(written) + sum(counts) <= 2 * MANY + 5, "one line says that a runner is ready"


@pytest.mark.slow
def test_a_runner_whose_log_handler_blocks_is_unhealthy_is_killed_and_a_stop_ends_the_worker(unread, tmp_path):
    path = tmp_path / "beat"
    process, _ = unread(
        *("horsies_worker", "--stall-timeout", "4", "--shutdown-timeout", "0", "--heartbeat-file", str(path)),
        DJANGO_SETTINGS_MODULE="tests.worker.blocking_log_settings",
    )
    first = wait_until(Worker.objects.first, what="the worker is registered").pid
    wait_until(path.exists)  # it exists for a moment before that, too: the worker tries to write it

    tasks.noop.send_many({} for _ in range(MANY))

    wait_until(lambda: age_of(path) > OLD - 2, limit=40, what="the worker is unhealthy")
    wait_until(lambda: not is_alive(first), limit=40, what="the runner is killed")
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0


@pytest.mark.slow
def test_a_supervisor_that_hangs_ends_at_the_deadline_of_a_stop(manage, tmp_path):
    path = tmp_path / "beat"
    process = manage(
        *("horsies_worker", "--shutdown-timeout", "60", "--heartbeat-file", str(path)),
        DJANGO_SETTINGS_MODULE="tests.worker.blocking_log_settings",
        HANG_AT=str(path),
    )
    wait_until((tmp_path / "hangs").exists, limit=40)

    process.signal(signal.SIGTERM)
    process.signal(signal.SIGINT)

    assert process.wait(40) == 1
    assert "did not stop in time" in process.output


# The thread that writes the log of a supervisor.


class BlockingHandler(logging.Handler):
    """Keeps messages, and blocks at each until ``gate`` is set."""

    def __init__(self):
        super().__init__()
        self.gate, self.is_blocked, self.messages, self.filtered = threading.Event(), threading.Event(), [], []

    def handle(self, record):
        """Keep a message, without the lock that the thread's handlers share."""
        if threading.current_thread() is not threading.main_thread():
            self.is_blocked.set()
            assert self.gate.wait(20)
        self.messages.append(record.getMessage())

    def count(self, record):
        """Count a record as a filter of the logger."""
        self.filtered.append(record.getMessage())
        return True


@pytest.fixture
def blocking():
    handler = BlockingHandler()
    console_logging.logger.addHandler(handler)
    console_logging.logger.addFilter(handler.count)
    yield handler
    handler.gate.set()
    console_logging.logger.removeHandler(handler)
    console_logging.logger.removeFilter(handler.count)


def test_a_filter_of_a_logger_sees_each_record_of_a_supervisor_once(blocking):
    blocking.gate.set()

    with console_logging.LogThread():
        console_logging.logger.warning("a line")

    assert blocking.messages == blocking.filtered == ["a line"]


def test_records_that_a_supervisor_logs_while_its_log_thread_ends_are_written_or_counted(blocking, monkeypatch):
    monkeypatch.setattr(console_logging, "CLOSE_TIMEOUT", 0.0)
    monkeypatch.setattr(console_logging, "MAX_WAITING", 2)
    with console_logging.LogThread() as thread:
        console_logging.logger.warning("first")
        assert blocking.is_blocked.wait(20)
        for _ in range(5):
            console_logging.logger.warning("next")

        thread.close()
        console_logging.logger.warning("late")

        assert blocking.messages == ["late"]
        blocking.gate.set()
        wait_until(lambda: "log lines lost count=3: a handler blocked" in blocking.messages)
        assert blocking.messages[:2] == ["late", "first"]
        wait_until(lambda: blocking.messages.count("next") == 2)
