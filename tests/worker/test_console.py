"""The log lines on the console: one as each body begins, and one as it ends."""

import io
import logging
import os
import re
import subprocess
import sys
import time
from collections import defaultdict, deque
from datetime import datetime

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Task
from horsies_django.worker import console_logging
from horsies_django.worker.console_logging import BufferedHandler
from tests.conftest import ROOT, database_url, wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.once

#: Enough no-ops for many to begin and end within one turn of the producer.
MANY = 600

TASK_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO    horsies_django\.worker "
    r"task (?P<event>started|completed) id=(?P<id>[-0-9a-f]{36}) name=tests\.jobs\.tasks\.noop queue=default attempt=1"
    r"( duration=\d+\.\d{3}s)?"
)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("runners", ["1", "2"])
def test_a_real_worker_logs_the_start_and_end_of_each_task_in_whole_lines(manage, runners):
    handles = tasks.noop.send_many({} for _ in range(MANY))

    process = manage("horsies_worker", "--drain", "--processes", runners)

    assert process.wait(60) == 0, process.output
    events, times = defaultdict(list), defaultdict(list)
    for line in process.output.splitlines():
        if " task " in line:
            match = TASK_LINE.fullmatch(line)
            assert match, line
            events[match["id"]].append(match["event"])
            times[match["id"]].append(match["time"])
    assert events == {str(handle.id): ["started", "completed"] for handle in handles}
    assert all(started <= completed for started, completed in times.values())


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_start_of_a_body_is_logged_before_it_ends_or_kills_its_process(worker, tmp_path):
    process = worker("--threads", "8")
    held = [tasks.hold.send(str(number), str(tmp_path / "gate")) for number in range(8)]
    wait_until(lambda: all(f"task started id={handle.id}" in process.output for handle in held))
    (tmp_path / "gate").touch()

    fatal = tasks.hard_exit.send("fatal")

    wait_until(lambda: "runner died" in process.output)
    assert f"task started id={fatal.id}" in process.output


def test_a_line_that_another_thread_writes_at_once_is_kept_once(monkeypatch, caplog):
    handler = BufferedHandler()
    handler.stream = io.StringIO()

    class FlushedAtOnce(deque):
        """Stands for a thread that flushes between two steps of the one that keeps a line."""

        def append(self, line):
            super().append(line)
            handler.flush()

    monkeypatch.setattr(handler, "_pending", FlushedAtOnce())
    monkeypatch.setattr(handler, "is_only_handler", lambda: True)
    caplog.set_level(logging.INFO, logger=console_logging.logger.name)

    # The caller logs the line itself where the handler does not keep it.
    assert handler.write_later("task started id=%s", 1)
    assert handler.stream.getvalue().count("task started id=1") == 1


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that can't be written to")
def test_an_unwritable_stderr_fails_no_task():
    tasks.noop.send_many({} for _ in range(MANY))
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}

    with open("/dev/full", "w") as full:
        command = [sys.executable, "manage.py", "horsies_worker", "--drain"]
        subprocess.run(command, cwd=ROOT, env=environment, stderr=full, timeout=60)

    assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
    assert Task.objects.count() == MANY


# The console handler alone.


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that makes the console the only handler of our logger, and returns its stream."""

    def opened():
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        ours = logging.getLogger("horsies_django")
        monkeypatch.setattr(ours, "handlers", [BufferedHandler()])
        monkeypatch.setattr(ours, "propagate", False)
        ours.setLevel(logging.INFO)
        return sys.stderr

    before = logging.getLogger("horsies_django").level
    yield opened
    logging.getLogger("horsies_django").setLevel(before)


def console_handler():
    return console_logging._handler()


def shown(stream):
    """Return the lines of a stream without the time."""
    return [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]


def test_buffered_lines_are_written_in_the_order_of_their_records(terminal):
    stream = terminal()
    console_logging.log_later(None, "task %s", "a", is_last=False)
    assert not stream.getvalue()

    logging.getLogger("horsies_django.worker").warning("careful")
    console_logging.log_later(None, "task %s", "b", is_last=False)
    console_logging.log_later(None, "task %s", "c", is_last=True)
    console_logging.log_later(None, "task %s", "d", is_last=False)
    console_logging.flush()

    info = "INFO    horsies_django.worker task"
    careful = "WARNING horsies_django.worker careful"
    assert shown(stream) == [f"{info} a", careful, f"{info} b", f"{info} c", f"{info} d"]


def test_a_buffered_line_is_formatted_like_its_record(terminal):
    stream = terminal()
    console_logging.log_later(None, "task %s took %.3fs", "a", 0.25, is_last=True)

    (line,) = stream.getvalue().splitlines()
    created = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    record = {"name": "horsies_django.worker", "levelname": "INFO", "msg": "task a took 0.250s"}
    moment = {"created": created, "msecs": float(line[20:23])}
    assert line == console_handler().format(logging.makeLogRecord(record | moment))
    assert abs(created - time.time()) < 60


@pytest.mark.parametrize("where", [None, "horsies_django", "horsies_django.worker"])
def test_an_additional_log_handler_gets_the_records(terminal, where, monkeypatch):
    stream = terminal()
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger(where)
    monkeypatch.setattr(logging.getLogger("horsies_django"), "propagate", True)
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, handler])

    console_logging.log_later(None, "task %s", "a", is_last=False)

    (record,) = records
    assert (record.name, record.levelno, record.msg, record.args) == (
        "horsies_django.worker",
        logging.INFO,
        "task %s",
        ("a",),
    )
    assert (record.funcName, record.module) == ("test_an_additional_log_handler_gets_the_records", "test_console")
    assert shown(stream) == ["INFO    horsies_django.worker task a"]


def test_a_log_filter_and_a_record_factory_are_called(terminal, monkeypatch):
    terminal()
    calls = []
    logger = logging.getLogger("horsies_django.worker")
    logger.addFilter(calls.append)
    console_logging.log_later(None, "task a", is_last=True)
    logger.removeFilter(calls.append)
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *args, **kwargs: calls.append(None) or factory(*args, **kwargs))
    console_logging.log_later(None, "task b", is_last=True)
    logging.setLogRecordFactory(factory)

    assert len(calls) == 2


def test_log_lines_below_the_level_are_not_written(terminal):
    stream = terminal()
    logging.getLogger("horsies_django").setLevel(logging.WARNING)

    console_logging.log_later(None, "task a", is_last=True)

    assert not stream.getvalue()


def test_logging_to_a_closed_stream_raises_nothing(terminal):
    stream = terminal()
    stream.close()

    console_logging.log_later(None, "task a", is_last=True)
    console_logging.log_later(None, "task b", is_last=False)
    logging.getLogger("horsies_django.worker").error("unwritten")
    console_logging.flush()

    assert not console_handler()._pending


def test_many_log_lines_are_written_in_few_chunks_of_whole_lines(terminal, monkeypatch):
    terminal()
    pieces = []
    monkeypatch.setattr(console_handler(), "stream", type("Stream", (), {"write": staticmethod(pieces.append)}))

    for number in range(1_000):
        console_logging.log_later(None, "task number %d", number, is_last=False)
    console_logging.flush()

    assert all(piece.endswith("\n") and len(piece) <= 4_096 for piece in pieces)
    assert len(pieces) < 30
    assert [int(line.split()[-1]) for line in "".join(pieces).splitlines()] == list(range(1_000))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # a thread that another test left running
def test_a_forked_child_does_not_write_the_pending_lines_of_its_parent(terminal):
    stream = terminal()
    console_logging.log_later(None, "task a", is_last=False)

    pid = os.fork()
    if not pid:
        os._exit(len(console_handler()._pending))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    console_logging.flush()
    assert shown(stream) == ["INFO    horsies_django.worker task a"]
