"""The reasons why a task is not running: each with real rows, and only those that apply."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import RetryPolicy, Workflow, sleep, wait_for_event
from horsies_django.core.status import BeatRole
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Heartbeat, Limit, Queue, Task, Worker, WorkflowTask
from horsies_django.ops.diagnosis import ReasonCode, reasons_of, reasons_of_node
from horsies_django.ops.diagnosis.waiting import MAX_COUNTED
from tests.admin.client import html_of, log_in
from tests.conftest import ROOT, wait_until
from tests.jobs import limited, tasks

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def row_of(handle):
    return Task.objects.get(pk=handle.id)


def codes(handle):
    return [str(reason.code) for reason in reasons_of(row_of(handle))]


def run_commit_callbacks():
    """Run the on-commit callbacks when the block ends."""
    return TestCase.captureOnCommitCallbacks(execute=True)


def worker_row(key="w", **columns):
    Worker.objects.register(key, "", "host", 1)
    Worker.objects.filter(pk=key).update(**{"threads": 1, "async_slots": 1} | columns)


def claim(worker, **counts):
    with transaction.atomic():
        return Task.objects.claim(worker, **counts)


def test_nothing_delays_a_due_task_that_a_free_worker_serves(client):
    worker_row()
    handle = tasks.noop.send()

    assert codes(handle) == ["NOTHING"]
    assert "a worker should claim it within seconds. If none does, check the logs" in html_of(
        log_in(client, "view_task"), handle
    )


def test_a_scheduled_task_reports_when_it_is_due():
    worker_row()
    handle = tasks.noop.schedule(3_600)

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.SCHEDULED
    assert reason.when == row_of(handle).enqueued_at


@pytest.mark.slow
def test_a_failed_attempt_waits_for_its_retry(drain):
    policy = RetryPolicy.fixed([3_600], auto_retry_for=["DOWN"], jitter=False)
    handle = tasks.fixed.with_options(retry_policy=policy).send("k")
    drain()
    worker_row()

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.RETRYING
    assert "attempt 1" in reason.words


def test_a_passed_deadline_is_reported():
    handle = tasks.noop.send()
    Task.objects.update(good_until=Now())

    assert codes(handle) == ["PAST_DEADLINE"]


def test_a_task_waits_because_its_queue_is_paused(client):
    worker_row()
    queue = Queue.objects.create(name="emails", paused=True)
    handle = tasks.on_emails.send()

    assert codes(handle) == ["QUEUE_PAUSED"]
    html = html_of(log_in(client, "view_task", "view_queue"), handle)
    assert f"/admin/horsies_django/queue/{queue.pk}/change/" in html


def test_a_full_queue_names_the_tasks_that_run():
    worker_row()
    Queue.objects.create(name="default", max_concurrency=1)
    running = tasks.noop.send()
    claim("other", start=1)

    (reason,) = reasons_of(row_of(tasks.noop.send()))

    assert reason.code is ReasonCode.QUEUE_FULL
    assert reason.words == "The queue default has reached its limit: 1 of 1 in progress."
    assert [about.key for about in reason.about] == [running.id]


def test_a_queue_with_a_limit_of_0_is_full():
    worker_row()
    Queue.objects.create(name="default", max_concurrency=0)

    (reason,) = reasons_of(row_of(tasks.noop.send()))

    assert reason.code is ReasonCode.QUEUE_FULL
    assert reason.words == "default: stopped: limit 0"


def test_a_used_up_queue_rate_reports_when_the_next_task_may_start():
    worker_row()
    Queue.objects.create(name="default", rate_limit="1/h", tokens=0.5, refilled_at=Now())

    (reason,) = reasons_of(row_of(tasks.noop.send()))

    assert reason.code is ReasonCode.RATE_LIMITED
    assert reason.words == "The rate limit of default is reached: 1/h."
    assert 1_700 < (reason.when - timezone.now()).total_seconds() < 1_900


def test_the_reason_is_no_worker_when_none_is_alive():
    handle = tasks.noop.send()
    worker_row(last_beat_at=NowPlus(-3_600))

    assert codes(handle) == ["NO_WORKER"]
    assert "No worker that is online serves the queue default" in reasons_of(row_of(handle))[0].words


@pytest.mark.parametrize("columns", [{"queues": ["other"]}, {"excluded_queues": ["emails"]}])
def test_the_reason_is_no_worker_when_none_serves_the_queue(columns):
    handle = tasks.on_emails.send()
    worker_row(**columns)

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.NO_WORKER
    assert "serves the queue emails" in reason.words
    assert [about.key for about in reason.about] == ["w"]


def test_stopping_workers_are_reported_unless_another_serves_the_queue():
    handle = tasks.noop.send()
    worker_row(stop_requested_at=Now())

    assert codes(handle) == ["WORKERS_STOPPING"]
    worker_row("w2", queues=["default"])
    assert codes(handle) == ["NOTHING"]


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ({"stop_requested_at": Now()}, ReasonCode.WORKERS_QUIET, "is quiet or stopping."),
        ({"stalled_since": NowPlus(-5)}, ReasonCode.WORKERS_STALLED, "stands still, is quiet or is stopping."),
    ],
    ids=["stopping", "stands still"],
)
def test_workers_that_claim_nothing_are_reported_unless_another_claims_from_the_queue(state, code, words):
    handle = tasks.noop.send()
    worker_row(**state)
    worker_row("w2", quiet_since=Now())

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is code
    assert reason.words == f"Every worker that serves the queue default {words}"
    assert {about.key for about in reason.about} == {"w", "w2"}
    worker_row("w3")
    assert codes(handle) == ["NOTHING"]


def test_taken_slots_and_tasks_that_run_first_are_reported():
    worker_row(threads=2)
    tasks.noop.send()
    tasks.noop.send()
    claim("w", start=2)
    handle = tasks.noop.send()
    assert codes(handle) == ["WORKERS_BUSY"]

    Task.objects.filter(pk=handle.id).update(enqueued_at=NowPlus(-5))
    handle = tasks.noop.send()
    tasks.noop.with_options(priority=9).send()
    tasks.noop.with_options(priority=-9).send()
    tasks.awrite.with_options(priority=9).send("another kind")
    tasks.on_emails.with_options(priority=9).send()
    busy, first = reasons_of(row_of(handle))
    assert [busy.code, first.code] == ["WORKERS_BUSY", "OTHERS_FIRST"]
    assert busy.words.endswith("are in use: 2.")
    assert first.words.endswith("ahead of it: 2.")


def test_thread_slots_and_async_slots_are_counted_separately():
    worker_row(threads=1, async_slots=1)
    tasks.noop.send()
    claim("w", start=1)

    assert codes(tasks.noop.send()) == ["WORKERS_BUSY"]
    assert codes(tasks.awrite.send("k")) == ["NOTHING"]


def test_a_worker_that_reports_no_slots_does_not_count_as_busy():
    worker_row(threads=None)
    tasks.noop.send()
    claim("w", start=1)

    assert codes(tasks.noop.send()) == ["NOTHING"]


@pytest.mark.slow
def test_the_count_of_tasks_that_run_first_has_a_bound():
    worker_row(threads=1)
    Task.objects.bulk_create([Task(task_name="x.y") for _ in range(MAX_COUNTED + 50)], batch_size=500)
    handle = tasks.noop.send()

    with CaptureQueriesContext(connection) as captured:
        (reason,) = reasons_of(row_of(handle))

    assert f"{MAX_COUNTED:,}+" in reason.words
    assert len(captured) <= 8


def test_a_claimed_task_waits_for_a_slot(client):
    handle = tasks.noop.send()
    worker_row()
    claim("w", start=0, prefetch=1)

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.CLAIMED
    html = html_of(log_in(client, "view_task", "view_worker"), handle)
    assert "/admin/horsies_django/worker/w/change/" in html


@pytest.mark.parametrize("status", ["CLAIMED", "RUNNING"])
def test_a_worker_without_heartbeats_is_reported_as_silent(status):
    handle = tasks.noop.send()
    claim("w", start=int(status == "RUNNING"), prefetch=int(status == "CLAIMED"))
    Task.objects.update(claimed_at=NowPlus(-90), **({"started_at": NowPlus(-90)} if status == "RUNNING" else {}))
    role = BeatRole.CLAIMER if status == "CLAIMED" else BeatRole.RUNNER

    *_, reason = reasons_of(row_of(handle))
    assert reason.code is ReasonCode.SILENT
    assert reason.when - row_of(handle).claimed_at == timedelta(seconds=120)

    for task in Task.objects.all():
        Heartbeat.objects.create(task=task, role=role, sender_id="w", hostname="host", pid=1)
    assert "SILENT" not in codes(handle)


def test_a_held_task_whose_worker_stands_still_is_reported_with_the_time_since_when():
    handle = tasks.noop.send()
    worker_row(stalled_since=NowPlus(-5))
    claim("w", start=1)

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.STALLED
    assert reason.when == Worker.objects.get().stalled_since
    Worker.objects.record_stalled("w", None)
    assert codes(handle) == []


def test_a_task_that_runs_or_has_ended_has_no_reasons():
    handle = tasks.noop.send()
    claim("w", start=1)
    assert codes(handle) == []
    handle.cancel(include_running=True)
    assert codes(handle) == []


def test_a_task_waits_because_its_workflow_is_paused():
    worker_row()
    root = Workflow("nightly", [tasks.noop.node()()]).start()
    task = Task.objects.get(workflow_id=root.id)
    from horsies_django.models import Workflow as Rows

    Rows.objects.update(status="PAUSED")  # as if the task's row was locked when the workflow was paused

    assert [str(reason.code) for reason in reasons_of(task)] == ["WORKFLOW_PAUSED"]


def test_a_node_reports_the_nodes_the_time_or_the_event_it_waits_for(client):
    first = tasks.noop.node(node_id="first")()
    pause, event = sleep(3_600, node_id="nap"), wait_for_event("news", node_id="event")
    last = tasks.noop.node(node_id="last", waits_for=[first, pause])()
    root = Workflow("w", [first, pause, event, last]).start()
    nodes = {node.node_id: node for node in WorkflowTask.objects.select_related("workflow")}

    (waits,) = reasons_of_node(nodes["last"])
    assert waits.code is ReasonCode.WAITS_FOR_NODES
    assert [about.label for about in waits.about] == ["first", "nap"]
    (sleeps,) = reasons_of_node(nodes["nap"])
    assert sleeps.code is ReasonCode.SLEEPS
    assert sleeps.when == Task.objects.get(pk=nodes["nap"].task_id).enqueued_at
    assert "news" in reasons_of_node(nodes["event"])[0].words
    assert reasons_of_node(nodes["first"]) == []
    root.pause()
    node = WorkflowTask.objects.select_related("workflow").get(node_id="last")
    assert [str(reason.code) for reason in reasons_of_node(node)] == ["WORKFLOW_PAUSED", "WAITS_FOR_NODES"]


@pytest.mark.slow
def test_a_started_worker_removes_the_reason_no_worker(worker):
    handle = tasks.noop.schedule(3_600)
    assert codes(handle) == ["SCHEDULED", "NO_WORKER"]

    worker()

    wait_until(lambda: codes(handle) == ["SCHEDULED"], what="the worker's row")


def test_the_admin_docs_list_every_reason():
    page = (ROOT / "docs" / "admin.md").read_text()

    assert all(f"`{code}`" in page for code in ReasonCode)


@pytest.mark.slow
def test_a_full_limit_names_the_tasks_that_hold_its_places(client):
    worker_row(threads=9)
    with run_commit_callbacks():
        running = [limited.two_per_user.send("a") for _ in range(2)]
        handle = limited.two_per_user.send("a")

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.LIMIT_FULL
    assert reason.words == "The limit tests.jobs.limited.two_per_user:a is reached: 2 of 2 in use."
    assert [about.key for about in reason.about] == [one.id for one in running]
    html = html_of(log_in(client, "view_task"), handle)
    assert f"/admin/horsies_django/task/{running[0].id}/change/" in html
    assert '<span class="quiet">blocked</span>' in html.split("field-page_limit_key")[1]
    assert "has a place" in html_of(client, running[0])


def test_the_reason_of_a_blocked_task_shows_the_limit_in_force():
    worker_row(threads=9)
    with run_commit_callbacks():
        *_, handle = [limited.two_per_user.send("a") for _ in range(3)]

    with limited.deployed(limited.two_per_user, max_concurrency=1):
        (by_code,) = reasons_of(row_of(handle))
    with limited.deployed(limited.two_per_user, max_concurrency=3):
        (with_room,) = reasons_of(row_of(handle))
    Limit.objects.all().override(max_concurrency=0, rate=None)
    (by_operator,) = reasons_of(row_of(handle))

    assert by_code.words == "The limit tests.jobs.limited.two_per_user:a is reached: 2 of 1 in use."
    assert with_room.code is ReasonCode.NOTHING
    assert by_operator.words == "tests.jobs.limited.two_per_user:a: stopped: limit 0"


def test_a_used_up_rate_of_a_limit_key_is_reported():
    worker_row(threads=9)
    with run_commit_callbacks():
        *_, handle = [limited.four_an_hour.send("a") for _ in range(5)]

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.RATE_LIMITED
    assert reason.words == "The rate limit of tests.jobs.limited.four_an_hour:a is reached: 4/h."
    assert 800 < (reason.when - timezone.now()).total_seconds() <= 900


def test_a_free_place_of_a_limit_is_reported_before_the_limiter_runs():
    worker_row(threads=9)
    handle = limited.two_per_user.send("a")  # the limiter runs on commit, which this test never reaches

    (reason,) = reasons_of(row_of(handle))

    assert reason.code is ReasonCode.NOTHING
