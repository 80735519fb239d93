"""A task that waits: its reason, its state, the list, its workflow and the command say the same of it."""

import re
from html import unescape
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models.functions import Now
from django.test import TestCase
from django.urls import reverse
from django.utils.html import strip_tags

from horsies_django import RetryPolicy, Workflow
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Limit, Queue, Task, Worker, WorkflowTask
from horsies_django.ops.inspector import tasks as inspect
from tests.admin.client import html_of, log_in
from tests.jobs import limited, tasks

pytestmark = [pytest.mark.django_db]

KEY = "tests.jobs.limited"


def send(job, count=1):
    """Send calls with one limit key, let the limiter run, and return the rows in order."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        handles = [job.send("a") for _ in range(count)]
    return [Task.objects.get(pk=handle.id) for handle in handles]


def claim(**counts):
    with transaction.atomic():
        return Task.objects.claim("w", **counts)


@pytest.fixture(autouse=True)
def worker_row(db):
    Worker.objects.register("w", "", "host", 1)
    Worker.objects.update(threads=9, async_slots=9)


def blocked(drain):
    return send(limited.two_per_user, 3)[-1]


def past_its_rate(drain):
    return send(limited.four_an_hour, 5)[-1]


def stopped(drain):
    row = send(limited.two_per_user, 3)[-1]
    Limit.objects.all().override(max_concurrency=0, rate=None)
    return row


def suspended(drain):
    with TestCase.captureOnCommitCallbacks(execute=True):
        root = Workflow("nightly", [tasks.noop.node()()]).start()
        claim(start=0, prefetch=1)
        root.pause()
    return Task.objects.get(workflow_id=root.id)


def in_a_paused_queue(drain):
    with TestCase.captureOnCommitCallbacks(execute=True):
        root = Workflow("nightly", [tasks.on_emails.node()()]).start()
    Queue.objects.create(name="emails", paused=True)
    return Task.objects.get(workflow_id=root.id)


def scheduled(drain):
    return Task.objects.get(pk=tasks.noop.schedule(3_600).id)


def retrying(drain):
    policy = RetryPolicy.fixed([3_600], auto_retry_for=["DOWN"], jitter=False)
    handle = tasks.fixed.with_options(retry_policy=policy).send("k")
    drain()
    return Task.objects.get(pk=handle.id)


def overdue(drain):
    row = Task.objects.get(pk=tasks.noop.send().id)
    Task.objects.update(good_until=NowPlus(-60))
    return row


def plain(html):
    return " ".join(unescape(strip_tags(html)).split())


def part(html, pattern):
    (found,) = re.findall(pattern, html, re.DOTALL)
    return plain(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "reason", "state", "queue", "listed"),
    [
        (blocked, "LIMIT_FULL", "blocked", "default", "pending (blocked)"),
        (past_its_rate, "RATE_LIMITED", "blocked", "default", "pending (blocked)"),
        (stopped, "LIMIT_FULL", "blocked", "default", "pending (blocked)"),
        (suspended, "WORKFLOW_PAUSED", "suspended", "default", "pending (suspended)"),
        (in_a_paused_queue, "QUEUE_PAUSED", "due", "emails paused", "pending"),
        (scheduled, "SCHEDULED", "scheduled", "default", "scheduled"),
        (retrying, "RETRYING", "retrying", "default", "retrying"),
        (overdue, "PAST_DEADLINE", "overdue", "default", "pending (overdue)"),
    ],
)
def test_reason_state_list_and_command_agree(client, drain, made, reason, state, queue, listed):
    row = made(drain)
    client = log_in(client, "view_task", "view_workflow")

    html = html_of(client, row)
    assert re.findall(r'data-reason="(\w+)"', html)[0] == reason
    assert part(html, r"field-page_status.*?<dd>(.*?)</dd>") == f"Pending {state}"
    assert part(html, r"field-page_queue.*?<dd>(.*?)</dd>") == queue

    html = client.get(
        reverse("admin:horsies_django_task_changelist"), {"q": str(row.pk), "kind": "all"}
    ).content.decode()
    assert part(html, r'class="field-shown_state">(.*?)</td>').lower().startswith(state)
    assert part(html, r'class="field-shown_place">(.*?)</td>') == queue

    out = StringIO()
    call_command("horsies_task", "show", str(row.pk), stdout=out)
    call_command("horsies_task", "list", stdout=out)
    assert f"  state: {listed}\n" in out.getvalue()
    assert re.search(rf"^{row.pk}  {re.escape(listed)}  ", out.getvalue(), re.MULTILINE)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (suspended, "Its workflow is paused."),
        (in_a_paused_queue, "The queue emails is paused."),
    ],
)
def test_the_details_of_a_node_say_what_its_task_waits_for(client, drain, made, text):
    row = made(drain)
    # As if the task had been suspended before its second attempt.
    WorkflowTask.objects.update(status="RUNNING", started_at=NowPlus(-60))

    address = reverse("admin:horsies_django_workflow_change", args=[row.workflow_id])
    html = log_in(client, "view_workflow").get(address, {"node": "0"}).content.decode()

    assert text in html


@pytest.mark.slow
def test_a_full_limit_and_a_full_queue_name_who_holds_them_longest_and_since_when(client):
    rows = send(limited.two_per_user.with_options(queue_name="emails"), 9)
    Limit.objects.update(max_concurrency_override=7)
    Task.objects.filter(pk__in=[row.pk for row in rows[:7]]).update(deferred=False, blocked=False)
    holders = [held.task_id for held in claim(start=7)]
    Task.objects.filter(pk=holders[6]).update(started_at=NowPlus(-1_800), claimed_at=NowPlus(-1_800))
    Queue.objects.create(name="emails", max_concurrency=7)
    due = Task.objects.get(pk=tasks.on_emails.send().id)
    client = log_in(client, "view_task")

    for row, code in ((rows[8], "LIMIT_FULL"), (due, "QUEUE_FULL")):
        reason = re.search(rf'<li data-reason="{code}">(.*?)</li>', html_of(client, row), re.DOTALL)[1]
        assert re.findall(r"/task/([0-9a-f-]{36})/change/", reason)[0] == str(holders[6])
        assert reason.count("/change/") == 5
        name = re.escape(limited.two_per_user.module_path)
        assert re.search(rf"{name} Running for 30 min \d+ s, ", plain(reason))
        assert plain(reason).endswith(", and 2 more")
        (text, *_) = inspect().show(row.pk).why
        assert "7 of 7" in text
        assert re.search(rf"{name} {holders[6]} \(Running for 30 min \d+ s\), ", text)
        assert text.endswith(", and 2 more")


def test_a_released_task_has_waited_for_a_worker_only_since_its_release(client):
    times = {"sent_at": NowPlus(-3_600), "enqueued_at": NowPlus(-3_600), "released_at": NowPlus(-600)}
    ran = {"status": "RUNNING", "claim": 1, "attempt": 1, "claimed_by_worker_id": "w", "claimed_at": NowPlus(-300)}
    row = Task.objects.create(task_name=tasks.noop.module_path, **times, **ran, started_at=NowPlus(-300))
    client = log_in(client, "view_task")

    html = html_of(client, row)
    listed = client.get(reverse("admin:horsies_django_task_changelist"), {"q": str(row.pk)}).content.decode()

    assert part(html, r"field-page_wait.*?<dd>(.*?)</dd>") == "5 min 0 s"
    assert "waited 5 min 0 s" in listed
    assert inspect().show(row.pk).due_at == Task.objects.get(pk=row.pk).released_at


def test_a_task_that_ended_while_its_limit_blocked_it_never_waited_for_a_worker(client):
    row = blocked(None)
    Task.objects.filter(pk=row.pk).cancel()

    html = html_of(log_in(client, "view_task"), row)

    assert "field-page_wait" not in html


def test_a_used_up_rate_says_when_the_next_task_is_admitted(client):
    row = past_its_rate(None)
    Task.objects.filter(limit_key__isnull=False, blocked=False).update(status="CANCELLED", cancelled_at=Now())
    Limit.objects.update(tokens=0.5, refilled_at=Now(), next_at=None)

    (text,) = inspect().show(row.pk).why
    html = html_of(log_in(client, "view_task"), row)

    assert text.endswith(": 4/h. (in 7 min)")
    assert re.search(r"4/h\.\s*<span[^>]*>[^<]* \(<time[^>]*>in 7 min<", html)


def test_a_rate_whose_admitted_tasks_have_not_started_names_them(client):
    row = past_its_rate(None)
    Limit.objects.update(tokens=4, refilled_at=Now(), next_at=None)

    (text,) = inspect().show(row.pk).why

    assert "is reached: 4/h." in text
    assert text.count("(Pending for ") == 4
