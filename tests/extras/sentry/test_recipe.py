"""The recipe of docs/sentry.md reports each failure once, with the scope of the body."""

from __future__ import annotations

import json
import os
import signal

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Task, Worker
from tests.conftest import FORKS, wait_until
from tests.extras.sentry import jobs
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def reporting(worker, tmp_path):
    """Start a worker with the recipe, and return a function that stops it and returns the events."""
    file = tmp_path / "events"
    process = worker(
        "--processes=1",
        "--threads=4",
        HORSIES_EVENTS_FILE=str(file),
        DJANGO_SETTINGS_MODULE="tests.extras.sentry.settings",
    )

    def stop():
        process.stop()
        return [json.loads(line) for line in file.read_text().splitlines()]

    return stop


def test_each_failure_is_one_event_with_the_scope_of_its_body(reporting):
    failing = [job.send(f"{job.name}-{n}") for job in (jobs.fail, jobs.afail) for n in range(3)]
    twice = jobs.fail_twice.send("ada")
    late, returned = jobs.sleep_too_long.send(), jobs.return_an_error.send()
    handles = [*failing, twice, late, returned, jobs.discard.send(), jobs.succeed.send()]
    wait_until(lambda: all(handle.info().status in (TaskStatus.FAILED, TaskStatus.COMPLETED) for handle in handles))
    if FORKS:
        (pid,) = Worker.objects.values_list("pid", flat=True)
        with open(f"/proc/{pid}/comm") as name:
            assert name.read() == "horsies-runner\n"

    events = reporting()

    by_task = {}
    for event in events:
        key = event.get("tags", {}).get("task.id") or event["extra"]["task_id"]
        by_task.setdefault(key, []).append(event)
    counts = {key: len(found) for key, found in by_task.items()}
    assert counts == {str(handle.id): 1 for handle in (*failing, twice, late, returned)}
    for handle in failing:
        (event,) = by_task[str(handle.id)]
        (exception,) = event["exception"]["values"]
        user = exception["value"].removeprefix("no card ")
        assert event["user"]["id"] == user
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"] if "card" in crumb["message"]] == [
            f"card of {user}"
        ]
        assert event["transaction"] == f"{jobs.__name__}.{user.partition('-')[0]}"
        assert event["tags"] == {
            "step": "charge",
            "task.name": event["transaction"],
            "task.id": str(handle.id),
            "task.queue": "default",
            "task.attempt": 1,
            "task.error_code": "UNHANDLED_EXCEPTION",
        }
    (last,) = by_task[str(twice.id)]
    assert last["tags"]["task.attempt"] == 2
    (timed_out,) = by_task[str(late.id)]
    assert timed_out["tags"]["task.error_code"] == "TASK_TIMEOUT"
    assert by_task[str(returned.id)][0]["extra"]["task_name"] == jobs.return_an_error.module_path


def test_a_crash_is_reported_by_the_supervisor(reporting, tmp_path):
    handle = tasks.hold.send("key", str(tmp_path / "gate"))
    pid = wait_until(Entry.objects.first, what="the body has begun").pid  # RUNNING may be written before it

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: handle.info().status == TaskStatus.FAILED)
    wait_until(lambda: (tmp_path / "events").exists() and "task crashed" in (tmp_path / "events").read_text())

    events = reporting()
    (crash,) = [event for event in events if "task crashed" in str(event.get("message"))]
    assert crash["tags"] == {"task.id": str(handle.id), "task.name": tasks.hold.task_name}
    assert Task.objects.get().status == TaskStatus.FAILED
