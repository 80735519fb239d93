"""The log records of bodies, kept with their output."""

import logging
import threading
from contextlib import contextmanager

import pytest
from django.core.checks import run_checks

from horsies_django import TaskStatus, testing
from horsies_django.core.options import AttemptLogOptions
from horsies_django.models import TaskOutput
from horsies_django.worker.attempt_log import keeping_attempt_logs
from tests.output import jobs

pytestmark = pytest.mark.django_db(transaction=True)


def messages(handle):
    return [chunk.data["message"] for chunk in handle.output() if chunk.kind == "log"]


@contextmanager
def bare_root():
    """Leave the root logger as Python makes it, as in a project without LOGGING: without the handlers of pytest."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def drain():
    with bare_root():
        testing.drain(retries=True)


@pytest.mark.slow
def test_without_the_option_nothing_is_kept():
    handle = jobs.logs.send("ERROR")

    drain()

    assert handle.output() == []


def test_records_are_kept_with_their_level_and_logger(keep_logs):
    keep_logs()
    handle = jobs.logs.send()

    with bare_root() as root:
        testing.drain()
        assert (root.level, root.handlers) == (logging.WARNING, [])

    (chunk,) = handle.output()
    assert (chunk.kind, chunk.attempt) == ("log", 1)
    assert chunk.data == {"level": "INFO", "logger": "shop.reports", "message": "a info for you"}


@pytest.mark.slow
def test_records_below_the_level_are_not_kept(keep_logs):
    keep_logs(level="WARNING")
    low, high = jobs.logs.send("INFO"), jobs.logs.send("ERROR")

    drain()

    assert messages(low) == []
    assert messages(high) == ["a error for you"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loggers", "count"), [(["shop"], 1), (["shop.reports"], 1), (["sho"], 0), (["shop.reports.pdf", "billing"], 0)]
)
def test_a_filter_names_loggers_and_those_below_them(keep_logs, loggers, count):
    keep_logs(loggers=loggers)
    handle = jobs.logs.send()

    drain()

    assert len(messages(handle)) == count


@pytest.mark.slow
def test_the_log_of_a_coroutine_has_what_its_children_and_threads_log(keep_logs):
    keep_logs()
    handle = jobs.logs_everywhere.send()

    drain()

    assert sorted(messages(handle)) == ["in a child", "in a thread", "in the coroutine"]


def test_what_other_threads_and_other_tasks_log_is_not_kept(keep_logs, send_script):
    keep_logs()

    def body(context):
        thread = threading.Thread(target=logging.getLogger("shop").error, args=["of a thread"])
        thread.start()
        thread.join()
        logging.getLogger("shop").error("of the body")

    handle = send_script(body)
    drain()
    logging.getLogger("shop").error("after the body")

    assert messages(handle) == ["of the body"]


@pytest.mark.slow
def test_a_traceback_is_part_of_the_message(keep_logs, send_script):
    keep_logs()

    def body(context):
        try:
            raise ValueError("odd")
        except ValueError:
            logging.getLogger("shop").exception("caught")

    handle = send_script(body)
    drain()
    (message,) = messages(handle)

    assert message.startswith("caught\nTraceback")
    assert message.endswith("ValueError: odd")


@pytest.mark.slow
def test_a_record_with_wrong_arguments_does_not_reach_the_body(keep_logs, send_script, capsys):
    keep_logs()

    def body(context):
        logging.getLogger("shop").error("%d", "no number")
        logging.getLogger("shop").error("goes on")

    handle = send_script(body)
    drain()

    assert handle.status() == TaskStatus.COMPLETED
    assert messages(handle) == ["goes on"]


@pytest.mark.slow
def test_texts_that_no_database_takes_are_escaped(keep_logs, send_script):
    keep_logs()
    handle = send_script(lambda context: logging.getLogger("shop").error("a\0b%sc", chr(0xD800)))
    drain()

    assert messages(handle) == ["a\\x00b\\ud800c"]


@pytest.mark.slow
def test_a_long_log_is_cut_with_a_note_and_output_goes_on(keep_logs, send_script):
    keep_logs(max_bytes=1_024)

    def body(context):
        for _ in range(30):
            logging.getLogger("shop").error("x" * 100)
        context.write("the result")

    handle = send_script(body)
    drain()

    *kept, note, last = handle.output()
    assert 0 < len(kept) < 11
    assert (note.kind, note.data) == ("log", "[cut: more than 1,024 bytes]")
    assert (last.kind, last.data) == ("output", "the result")


@pytest.mark.slow
def test_a_failed_attempt_keeps_its_log(keep_logs):
    keep_logs()
    handle = jobs.fails_and_logs.send()

    drain()

    assert handle.status() == TaskStatus.FAILED
    assert messages(handle) == ["about to fail"]


@pytest.mark.slow
def test_warnings_reach_the_terminal_as_without_the_option(keep_logs, capfd):
    keep_logs()
    jobs.logs.send("WARNING")
    jobs.logs.send("INFO")

    drain()

    assert capfd.readouterr().err.splitlines() == ["a warning for you"]
    assert TaskOutput.objects.count() == 2


@pytest.mark.parametrize("level", ["ERROR", "CRITICAL"])
def test_warnings_reach_the_terminal_whatever_level_is_kept(keep_logs, capfd, level):
    keep_logs(level=level)
    handle = jobs.logs.send("WARNING")

    drain()

    assert capfd.readouterr().err.splitlines() == ["a warning for you"]
    assert messages(handle) == []


@pytest.mark.slow
def test_a_project_may_have_no_handler_of_last_resort(keep_logs, monkeypatch):
    keep_logs()
    monkeypatch.setattr(logging, "lastResort", None)
    handle = jobs.logs.send("WARNING")

    drain()

    assert messages(handle) == ["a warning for you"]


@pytest.mark.parametrize("first", [0, 1])
def test_two_workers_of_a_process_print_warnings_once_and_leave_the_level_as_it_was(capfd, first):
    workers = [keeping_attempt_logs(AttemptLogOptions(), name) for name in ("a", "b")]
    with bare_root() as root:
        for worker in workers:
            worker.__enter__()
        logging.getLogger("shop").warning("low stock")
        workers[first].__exit__(None, None, None)
        assert root.level == logging.INFO
        workers[1 - first].__exit__(None, None, None)
        assert (root.level, root.handlers) == (logging.WARNING, [])

    assert capfd.readouterr().err.splitlines() == ["low stock"]


def test_a_root_logger_that_the_project_has_set_up_keeps_its_level(keep_logs):
    keep_logs()
    handle = jobs.logs.send()

    with bare_root() as root:
        root.addHandler(logging.NullHandler())
        testing.drain()

    assert messages(handle) == []


# Replay.


@pytest.mark.slow
def test_nothing_is_kept_while_kept_steps_are_met_again(keep_logs):
    keep_logs()
    handle = jobs.steps_and_logs.send()
    drain()
    handle.send_event("go")

    drain()

    assert handle.status() == TaskStatus.COMPLETED
    chunks = [(chunk.attempt, chunk.data) for chunk in handle.output()]
    seen = [(attempt, data if isinstance(data, str) else data["message"]) for attempt, data in chunks]
    assert seen == [(1, "begins"), (1, "begins"), (1, "between"), (1, "goes on"), (1, "goes on")]


@pytest.mark.slow
def test_a_retry_without_records_is_not_muted(send_script):
    def body(context):
        context.write("begins")
        if not context.is_last_attempt:
            context.step("fails", lambda: 1 / 0)

    handle = send_script(body, attempts=2)
    drain()

    assert [chunk.data for chunk in handle.output()] == ["begins", "begins"]


# Options.


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ({"levels": "INFO"}, "['attempt_log']['levels'] is not an option"),
        ("INFO", "['attempt_log'] is 'INFO'; allowed: a dict"),
    ],
)
def test_a_bad_option_is_named(options, log, problem):
    options(attempt_log=log)

    assert any(problem in str(error) for error in run_checks())
