"""Commands and logs escape the control characters of rows: escape sequences, line breaks, bidirectional marks."""

import io
import json
import logging
import re
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from horsies_django import task
from horsies_django.core.printable import LOGGERS, lines, one_line
from horsies_django.models import Queue, Schedule, Task, TaskAttempt, Worker
from tests.conftest import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

#: Clears the screen, sets the window's title, starts a line, deletes, reverses the reading order; C1's own escape.
EVIL = "x\x1b[2J\x1b]0;own\x07\nINFO forged\r\x08\x7f\x9b31m\u202eabc\u2066\u2028\u200fend"

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\u200e\u200f]")


@task
def raises(message):
    raise ValueError(message)


def printed(*arguments, **options):
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command(*arguments, stdout=out, stderr=err, **options)
    except CommandError as error:
        err.write(lines(str(error)))
    return out.getvalue() + err.getvalue()


def is_plain(text):
    """Check that the row's text is escaped throughout; return whether no line is forged."""
    assert "x\\u001b[2J" in text
    assert "\\u202eabc" in text
    assert not CONTROL.search(text), repr(text)
    return not any(line.startswith("INFO forged") for line in text.splitlines())


@pytest.fixture
def evil_task():
    now = timezone.now()
    row = Task.objects.create(
        task_name=EVIL,
        queue_name=EVIL,
        args=[EVIL],
        kwargs={EVIL: EVIL},
        status="FAILED",
        failed_at=now,
        claimed_by_worker_id=EVIL,
        unique_key=EVIL,
        error_code=EVIL,
        result={"err": {"error_code": EVIL, "message": EVIL, "data": EVIL, "exception": {"traceback": EVIL}}},
        attempt=1,
    )
    TaskAttempt.objects.create(
        task=row,
        attempt=1,
        outcome="FAILED",
        will_retry=False,
        due_at=now,
        started_at=now,
        finished_at=now,
        error_code=EVIL,
        error_message=EVIL,
        traceback=EVIL,
        worker_id=EVIL,
        hostname=EVIL,
        pid=1,
    )
    return row


@pytest.mark.parametrize("as_json", [False, True])
def test_the_task_list_prints_no_control_characters(evil_task, as_json):
    text = printed("horsies_task", "list", json=as_json)

    assert is_plain(text)
    assert len(text.splitlines()) == (1 if as_json else 2)
    if as_json:
        assert json.loads(text)["queue"] == EVIL


@pytest.mark.parametrize("as_json", [False, True])
def test_showing_a_task_prints_no_control_characters(evil_task, as_json):
    text = printed("horsies_task", "show", str(evil_task.pk), json=as_json)

    assert is_plain(text)
    if as_json:
        assert json.loads(text)["worker_id"] == EVIL


def test_actions_on_a_task_print_no_control_characters(evil_task):
    Task.objects.update(status="PENDING", queue_name=EVIL)

    text = printed("horsies_task", "retry", str(evil_task.pk))
    text += printed("horsies_task", "move", str(evil_task.pk), to_queue=EVIL)

    assert not CONTROL.search(text), repr(text)


def test_the_status_and_the_queue_list_print_no_control_characters():
    Queue.objects.create(name=EVIL, paused=True)
    Task.objects.create(task_name="a.b", queue_name=EVIL)
    Worker.objects.create(
        id=EVIL[:100], hostname=EVIL[:100], pid=1, started_at=timezone.now(), last_beat_at=timezone.now()
    )

    assert is_plain(printed("horsies_status"))
    assert is_plain(printed("horsies_queue", "list"))


def test_the_schedule_list_and_the_scheduler_print_no_control_characters(caplog):
    due = timezone.now() - timedelta(seconds=1)
    Schedule.objects.create(
        name=EVIL[:100],
        timing="every:60",
        task_name="tests.management.test_control_characters.raises",
        enabled=True,
    )
    Schedule.objects.update(next_run_at=due, next_slot_at=due)

    assert is_plain(printed("horsies_schedule", "list"))
    assert is_plain(printed("horsies_scheduler", once=True, verbosity=0))


@pytest.mark.slow
def test_a_worker_logs_no_control_characters(manage):
    Task.objects.create(task_name=EVIL, queue_name=EVIL)
    raises.send(EVIL)

    process = manage("horsies_worker", "--drain", TEST_MODULES=__name__)

    assert process.wait() == 0
    assert "task completed" not in process.output
    assert process.output.count("task failed") == 2
    assert not CONTROL.search(process.output), repr(process.output)
    assert f"name={one_line(EVIL)} " in process.output
    assert "ValueError: x\\u001b[2J" in process.output
    assert "\nINFO forged" not in process.output


def test_a_log_handler_of_the_project_gets_no_control_characters():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("horsies_django.worker")
    logger.addHandler(handler)
    try:
        try:
            raise ValueError(EVIL)
        except ValueError:
            logger.exception("task failed name=%s", EVIL)
    finally:
        logger.removeHandler(handler)

    assert not CONTROL.search(stream.getvalue()), repr(stream.getvalue())
    assert stream.getvalue().startswith(f"task failed name={one_line(EVIL)}\n  Traceback")
    assert "\nINFO forged" not in stream.getvalue()


def test_every_logger_of_the_package_escapes_control_characters():
    sources = "\n".join(path.read_text() for path in (ROOT / "horsies_django").rglob("*.py"))

    assert set(re.findall(r'getLogger\("(horsies_django[^"]*)"\)', sources)) <= set(LOGGERS)


def test_printable_text_is_not_escaped():
    for text in ("plain", "Grüße, 日本語 → 👩‍👩‍👧 हिन्दी", "a b"):
        assert one_line(text) == lines(text) == text
    assert lines("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb") == r"a\n\tb"
