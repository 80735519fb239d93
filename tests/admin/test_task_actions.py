"""Actions on tasks: on one, on those that are selected, and on all that match the filters."""

import re
from datetime import timedelta
from html import unescape
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import horsies_django
from horsies_django import RetryPolicy, SuccessCase, SuccessPolicy
from horsies_django.admin.actions import bulk_action
from horsies_django.core.ids import uuid7s
from horsies_django.models import Heartbeat, Task, TaskAttempt, Workflow, WorkflowTask
from horsies_django.ops.keyset import scan
from tests.admin.client import messages_of
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LIST = "/admin/horsies_django/task/"
PERMISSIONS = {
    "retry": "retry_task",
    "cancel": "cancel_task",
    "cancel_running": "cancel_task",
    "run_now": "run_now_task",
    "move": "move_task",
    "delete": "delete_task",
}
#: Later than every task of a test.
SOON = (timezone.now() + timedelta(days=1)).isoformat()
#: The form fields of a finished count.
COUNTED = {"counted": '{"PENDING": 9, "CANCELLED": 9}', "scanned": "9"}
FORM_FIELDS = {"move": {"queue_name": "emails", "priority": "7"}}


def act(client, action, *keys, query="", **more):
    return client.post(LIST + query, {"action": action, "_selected_action": [str(key) for key in keys], **more})


def running():
    handle = tasks.noop.send()
    with transaction.atomic():
        Task.objects.claim("w", start=1)
    return handle


def task_for(action):
    """Send and return a task to which the action applies."""
    if action in ("retry", "delete"):
        handle = tasks.noop.send()
        handle.cancel()
        return handle
    return {"cancel_running": running, "run_now": lambda: tasks.noop.schedule(3600)}.get(action, tasks.noop.send)()


def state(handle):
    return Task.objects.filter(pk=handle.id).values().first()


def failed_tasks(count, **columns):
    now = timezone.now()
    rows = [
        Task(id=key, task_name="jobs.many", status="FAILED", failed_at=now, error_code="X", **columns)
        for key in uuid7s(count)
    ]
    Task.objects.bulk_create(rows, batch_size=400)
    return rows


# Permissions.


@pytest.mark.parametrize("action", PERMISSIONS)
@pytest.mark.slow
def test_each_action_needs_its_own_permission_in_the_list_and_on_the_page(staff, action):
    handle = task_for(action)
    before = state(handle)
    client = staff("view_task", "change_task", *(set(PERMISSIONS.values()) - {PERMISSIONS[action]}))
    address = reverse("admin:horsies_django_task_do", args=[handle.id, action])
    more = {"confirmed": "1", **FORM_FIELDS.get(action, {})}

    act(client, action, handle.id, **more)
    act(client, action, handle.id, select_across="1", upper=str(UUID(int=2**128 - 1)), asked=SOON, **COUNTED, **more)

    assert client.post(address, more).status_code == 403
    assert client.get(address).status_code == 403
    assert state(handle) == before
    assert f'value="{action}"' not in client.get(LIST).content.decode()
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("action", PERMISSIONS)
def test_each_action_works_from_the_list_and_is_logged(staff, action):
    handle = task_for(action)
    before = state(handle)
    client = staff("view_task", PERMISSIONS[action])

    response = act(client, action, handle.id, confirmed="1", **FORM_FIELDS.get(action, {}))

    assert response.status_code == 302
    assert messages_of(response).startswith("1 task")
    assert state(handle) != before
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.is_deletion()) == (str(handle.id), action == "delete")


@pytest.mark.parametrize("action", PERMISSIONS)
def test_each_action_works_from_the_page_with_only_its_own_permission(staff, action):
    handle = task_for(action)
    before = state(handle)
    client = staff("view_task", PERMISSIONS[action])
    address = reverse("admin:horsies_django_task_do", args=[handle.id, action])

    assert client.get(address).status_code == 200
    assert state(handle) == before
    client.post(address, {"confirmed": "1", **FORM_FIELDS.get(action, {})})

    assert state(handle) != before


def test_djangos_own_delete_page_is_forbidden(staff):
    handle = task_for("delete")

    response = staff("view_task", "delete_task").post(
        reverse("admin:horsies_django_task_delete", args=[handle.id]), {"post": "yes"}
    )

    assert response.status_code == 403
    assert state(handle) is not None


@pytest.mark.parametrize("action", ["cancel_running", "move", "delete"])
def test_an_irreversible_action_asks_for_confirmation(staff, action):
    handle = task_for(action)
    before = state(handle)

    html = act(staff("view_task", PERMISSIONS[action]), action, handle.id).content.decode()

    question = {"cancel_running": "Cancel and stop", "move": "Move", "delete": "Delete"}[action]
    assert f"<h1>{question} task tests.jobs.tasks." in html
    assert state(handle) == before


# Run now.


def test_run_now_makes_a_scheduled_task_run_at_once(staff, drain):
    handle = tasks.add.schedule(3600, 1)
    early = tasks.noop.send()

    response = act(staff("view_task", "run_now_task"), "run_now", handle.id, early.id)
    drain()

    assert "1 task is now due. 1 was skipped" in messages_of(response)
    assert handle.status() == "COMPLETED"


@pytest.mark.slow
def test_run_now_wakes_an_idle_worker(staff, worker):
    worker()
    handle = tasks.add.schedule(3600, 1)

    act(staff("view_task", "run_now_task"), "run_now", handle.id)

    assert handle.get(timeout=20).ok == 2


@pytest.mark.slow
def test_run_now_on_a_pending_retry_keeps_its_retry_count(drain):
    policy = RetryPolicy.fixed([3_600, 3_600], auto_retry_for=["DOWN"], jitter=False)
    handle = tasks.fixed.with_options(retry_policy=policy).send("now")
    drain()
    assert state(handle)["next_retry_at"] > timezone.now()

    assert Task.objects.filter(pk=handle.id).run_now() == 1

    row = state(handle)
    assert row["next_retry_at"] == row["enqueued_at"] <= timezone.now() + timedelta(seconds=5)
    assert (row["deferred"], row["retry_count"], row["attempt"]) == (False, 1, 1)
    drain()
    assert state(handle)["attempt"] == 2


def test_run_now_skips_tasks_past_their_deadline_and_engine_tasks():
    later = {"deferred": True, "enqueued_at": timezone.now() + timedelta(hours=1)}
    Task.objects.create(task_name="jobs.late", good_until=timezone.now() - timedelta(seconds=1), **later)
    Task.objects.create(task_name="horsies_django.workflows.engine_tasks.wake", **later)

    assert Task.objects.all().run_now() == 0


# Move.


def test_move_changes_only_tasks_that_have_not_started(staff):
    waiting, running_task = tasks.noop.schedule(3600), running()

    response = act(
        staff("view_task", "move_task"),
        "move",
        waiting.id,
        running_task.id,
        confirmed="1",
        queue_name="emails",
        priority="-100",
    )

    assert "1 task moved. 1 was skipped" in messages_of(response)
    assert (state(waiting)["queue_name"], state(waiting)["priority"]) == ("emails", -100)
    assert (state(running_task)["queue_name"], state(running_task)["priority"]) == ("default", 0)
    assert "Queue: default → emails. Priority: 0 → -100" in LogEntry.objects.get().change_message


def test_a_task_moved_to_a_higher_priority_is_claimed_first():
    first, second = tasks.noop.send(), tasks.noop.send()

    assert Task.objects.filter(pk=second.id).move(priority=1) == 1

    with transaction.atomic():
        (claim,) = Task.objects.claim("w", start=1)
    assert claim.task_id == second.id
    assert state(first)["status"] == "PENDING"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "Select another queue, enter another priority, or both."),
        ({"priority": "101"}, "less than or equal to 100"),
        ({"priority": "x"}, "Enter a whole number"),
        ({"queue_name": "nowhere"}, "No backend has the queue nowhere; allowed: default, emails."),
    ],
)
def test_an_invalid_move_says_what_is_allowed(staff, settings, given, error):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "emails"]}}
    handle = tasks.noop.send()

    html = act(staff("view_task", "move_task"), "move", handle.id, confirmed="1", **given).content.decode()

    assert error in html
    assert state(handle)["queue_name"] == "default"


def values_of_form(html):
    """Return what the form of a page would post unchanged."""
    inputs = re.findall(r'<input type="(?:number|text|hidden)" name="([^"]+)" value="([^"]*)"', html)
    chosen = re.findall(r'<select name="([^"]+)".*?<option value="([^"]*)" selected>', html, re.S)
    return dict([*inputs, *chosen])


@pytest.mark.parametrize("queues", [[], ["default", "emails"], ["emails", "others"]])
def test_the_move_form_of_one_task_changes_only_the_edited_fields(staff, settings, queues):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
    handle = tasks.noop.using(priority=3).send()
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": queues}}
    client = staff("view_task", "move_task")
    address = f"{LIST}{handle.id}/do/move/"

    shown = values_of_form(client.get(address).content.decode())
    assert (shown["queue_name"], shown["priority"]) == ("default", "3")
    again = client.post(address, shown).content.decode()
    assert "Select another queue, enter another priority, or both." in again
    Task.objects.filter(pk=handle.id).update(priority=5)  # by another user, meanwhile
    client.post(address, shown | {"queue_name": "emails"})

    assert (state(handle)["queue_name"], state(handle)["priority"]) == ("emails", 5)


def test_a_move_of_several_tasks_ignores_fields_left_empty(staff, settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "emails"]}}
    handles = [tasks.noop.using(priority=number).send() for number in (1, 2)]
    client = staff("view_task", "move_task")
    keys = [handle.id for handle in handles]

    html = act(client, "move", *keys).content.decode()
    assert '<option value="" selected>unchanged</option>' in html
    assert 'name="priority" min="-100"' in html  # no value
    act(client, "move", *keys, confirmed="1", queue_name="emails", priority="")

    assert [(state(one)["queue_name"], state(one)["priority"]) for one in handles] == [("emails", 1), ("emails", 2)]


@pytest.mark.parametrize(
    "given", [{}, {"priority": 101}, {"priority": True}, {"queue_name": ""}, {"queue_name": "nowhere"}]
)
def test_a_move_in_code_raises_for_invalid_values(settings, given):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "emails"]}}

    with pytest.raises(ValueError, match=r"queue_name|priority"):
        Task.objects.all().move(**given)


def test_a_task_is_not_moved_to_a_queue_that_its_backend_lacks(settings):
    backend = settings.TASKS["default"]
    settings.TASKS = {"default": {**backend, "QUEUES": ["default"]}, "other": {**backend, "QUEUES": ["emails"]}}
    Task.objects.create(task_name="jobs.one", backend="default")
    movable = Task.objects.create(task_name="jobs.two", backend="other")

    assert Task.objects.all().move(queue_name="emails") == 1
    assert Task.objects.get(queue_name="emails") == movable


# Delete.


def test_delete_removes_only_ended_tasks_with_attempts_and_heartbeats(staff, drain):
    ended = tasks.fail.send()
    drain()
    Heartbeat.objects.create(task_id=ended.id, sender_id="w", role="runner", sent_at=timezone.now(), pid=1)
    waiting = tasks.noop.send()

    response = act(staff("view_task", "delete_task"), "delete", ended.id, waiting.id, confirmed="1")

    assert "1 task deleted. 1 was skipped" in messages_of(response)
    assert list(Task.objects.all()) == [Task.objects.get(pk=waiting.id)]
    assert not TaskAttempt.objects.exists()
    assert not Heartbeat.objects.exists()


@pytest.mark.parametrize(
    ("status", "node", "is_deleted"),
    [
        ("RUNNING", "COMPLETED", False),
        ("COMPLETED", "RUNNING", False),
        ("COMPLETED", "COMPLETED", True),
    ],
)
def test_a_task_that_a_live_workflow_still_needs_is_not_deletable(status, node, is_deleted):
    key, now = UUID(int=1), timezone.now()
    root = Workflow.objects.create(pk=key, root_id=key, name="flow", status=status, completed_at=now)
    (row,) = failed_tasks(1, workflow_id=root.pk)
    WorkflowTask.objects.create(
        workflow=root, task_index=0, node_id="a", task_id=row.pk, status=node, completed_at=timezone.now()
    )

    assert Task.objects.all().deletable().exists() is is_deleted


# All that match the filters.


def fields_of(response):
    html = response.content.decode()
    return {
        name: unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', html)
        if name != "csrfmiddlewaretoken"
    }


@pytest.mark.slow
def test_an_action_on_all_matching_tasks_first_asks_with_count_and_filters(staff):
    rows = failed_tasks(1_200, queue_name="emails")
    failed_tasks(5)
    client = staff("view_task", "retry_task")

    response = act(client, "retry", rows[0].pk, query="?queue_name=emails&q=jobs.m", select_across="1")

    html = response.content.decode()
    for text in (
        "on all pages: <strong>1,200</strong>",
        "Failed: 1,200",
        "<h1>Retry 1,200 tasks?</h1>",
        ">Retry 1,200 tasks<",
        "Go back",
        "queue: emails",
        "jobs.m",
    ):
        assert text in html, text
    assert not Task.objects.filter(status="PENDING").exists()


@pytest.mark.slow
def test_all_matching_tasks_are_retried_in_batches_and_none_twice(staff, monkeypatch):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    rows = failed_tasks(1_200, queue_name="emails")
    others = failed_tasks(5)
    client = staff("view_task", "retry_task")
    query = "?queue_name=emails&state=failed"

    response = act(client, "retry", rows[0].pk, query=query, select_across="1")
    later = failed_tasks(1, queue_name="emails")
    response = client.post(LIST + query, fields_of(response))
    assert "500 changed, 0 skipped, of 1,200" in response.content.decode()
    Task.objects.filter(status="PENDING").update(status="FAILED", failed_at=timezone.now())  # they fail again
    requests = 1
    while response.status_code == 200:
        assert "data-horsies-continue" in response.content.decode()
        response = client.post(LIST + query, fields_of(response))
        requests += 1

    assert 3 <= requests <= 5
    assert response.headers["Location"] == LIST + "?queue_name=emails&state=failed"
    assert "1,200 tasks re-queued." in messages_of(response)
    assert Task.objects.filter(status="PENDING").count() == 700
    assert Task.objects.filter(pk__in=[row.pk for row in others + later], status="FAILED").count() == 6
    messages = LogEntry.objects.values_list("change_message", flat=True)
    assert sum(int(re.search(r"(\d+) changed", message)[1]) for message in messages) == 1_200
    assert all("queue: emails" in message for message in messages)


def test_a_task_that_stops_matching_during_an_action_is_left_alone(staff):
    first, *_, last = [tasks.noop.send() for _ in range(3)]
    client, query = staff("view_task", "cancel_task"), "?state=pending"
    response = act(client, "cancel_running", first.id, query=query, select_across="1")
    started = []

    def start_last(execute, sql, *rest):
        if sql.startswith("UPDATE") and not started:
            started.append(last.id)
            Task.objects.filter(pk=last.id).update(status="RUNNING", started_at=timezone.now())
        return execute(sql, *rest)

    with connection.execute_wrapper(start_last):
        response = client.post(LIST + query, fields_of(response))

    assert state(last)["status"] == "RUNNING"
    assert "2 tasks cancelled. 1 was skipped" in messages_of(response)


def test_an_action_excludes_tasks_sent_after_its_confirmation_page(staff):
    ids = [UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479"), UUID(int=2**128 - 1)]
    earlier = [tasks.noop.with_options(task_id=key).send() for key in ids]
    client = staff("view_task", "cancel_task")
    response = act(client, "cancel", earlier[0].id, select_across="1")
    later = tasks.noop.send()

    client.post(LIST, fields_of(response))

    assert [state(handle)["status"] for handle in (earlier[0], later)] == ["CANCELLED", "PENDING"]


@pytest.mark.parametrize("posted", ["", "x", "W10:1abcde:forged", None])
def test_a_confirmation_whose_progress_was_not_made_by_the_server_asks_again(staff, posted):
    handle = tasks.noop.send()
    client = staff("view_task", "cancel_task")
    response = act(client, "cancel", handle.id, select_across="1")
    fields = fields_of(response)
    forged = fields["progress"][:-1] + ("a" if fields["progress"][-1] != "a" else "b")

    again = client.post(LIST, fields | {"progress": forged if posted is None else posted})

    assert "Cancel 1 task<" in again.content.decode()
    assert state(handle)["status"] == "PENDING"


@pytest.mark.slow
@pytest.mark.parametrize("permission", ["retry_task", None])
def test_each_batch_of_an_action_needs_the_permission(staff, monkeypatch, permission):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    rows = failed_tasks(600)
    client = staff("view_task", "retry_task")
    response = client.post(LIST, fields_of(act(client, "retry", rows[0].pk, select_across="1")))
    if permission is None:
        from django.contrib.auth import get_user_model

        get_user_model().objects.get().user_permissions.clear()

    response = client.post(LIST, fields_of(response))

    assert Task.objects.filter(status="PENDING").count() == (600 if permission else 500)


def test_tasks_left_alone_are_reported_and_logged(staff):
    rows = failed_tasks(3)
    tasks.noop.send()
    client = staff("view_task", "delete_task")

    confirmation = act(client, "delete", rows[0].pk, select_across="1")
    response = client.post(LIST, fields_of(confirmation))

    assert "3 tasks deleted. 1 was skipped" in messages_of(response)
    assert Task.objects.count() == 1
    assert "3 changed, 1 skipped. [show: tasks]" in LogEntry.objects.get().change_message


@pytest.mark.slow
def test_all_matching_tasks_are_moved_as_the_form_says(staff, monkeypatch):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    handles = [tasks.noop.send() for _ in range(3)]
    client = staff("view_task", "move_task")
    confirmation = act(client, "move", handles[0].id, query="?state=due", select_across="1")

    rejected = client.post(LIST + "?state=due", fields_of(confirmation) | {"priority": "1000"})
    assert "less than or equal to 100" in rejected.content.decode()
    response = client.post(LIST + "?state=due", fields_of(rejected) | {"priority": "9"})
    while response.status_code == 200:
        response = client.post(LIST + "?state=due", fields_of(response))

    assert set(Task.objects.values_list("queue_name", "priority")) == {("default", 9)}


def count_to_the_end(client, response, query="", **more):
    """Submit the form of each page until counting has finished, and return all pages."""
    pages = [response]
    while pages[-1].status_code == 200 and "confirmed" not in fields_of(pages[-1]):
        assert len(pages) < 100
        pages.append(client.post(LIST + query, fields_of(pages[-1])))
    return pages


def count_in_chunks(monkeypatch, rows):
    """Count ``rows`` rows in each request."""
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    monkeypatch.setattr(scan, "CHUNKS", (rows,))


@pytest.mark.slow
@pytest.mark.parametrize("action", ["cancel", "delete"])
def test_an_action_shows_its_button_after_counting_all_matches(staff, monkeypatch, action):
    count_in_chunks(monkeypatch, 100)
    many, others = failed_tasks(90, queue_name="emails"), failed_tasks(700)
    status = "FAILED" if action == "delete" else "PENDING"
    Task.objects.update(status=status)
    client = staff("view_task", PERMISSIONS[action])

    first = act(client, action, many[0].pk, query="?queue_name=emails", select_across="1")
    pages = [page.content.decode() for page in count_to_the_end(client, first, "?queue_name=emails")]

    assert len(pages) >= len(many + others) / 100
    for html in pages[:-1]:
        assert re.search(r"at least \d+ \(looked through the newest [\d,]+\)", html)
        assert "data-horsies-continue" in html
        assert "Continue counting" in html
        assert 'name="confirmed"' not in html
    assert re.search(r"(Cancel|Delete) 90 tasks", pages[-1])
    assert "data-horsies-continue" not in pages[-1]
    assert Task.objects.filter(status=status).count() == 790


@pytest.mark.parametrize(("action", "number"), [("retry", 3), ("delete", 3), ("cancel", 2), ("move", 2)])
def test_the_button_counts_only_tasks_whose_state_allows_the_action(staff, action, number):
    rows = failed_tasks(3)
    tasks.noop.send_many({} for _ in range(2))
    client = staff("view_task", PERMISSIONS[action])

    html = act(client, action, rows[0].pk, select_across="1").content.decode()

    assert f"{action.capitalize()} {number} tasks" in html
    assert "<strong>5</strong>" in html
    assert ("Failed: 3" in html, "Pending: 2" in html) == (True, True)


def test_no_button_is_shown_when_no_task_allows_the_action(staff):
    rows = failed_tasks(3)

    html = act(staff("view_task", "cancel_task"), "cancel", rows[0].pk, select_across="1").content.decode()

    assert 'name="confirmed"' not in html
    assert "Back to the list" in html


@pytest.mark.slow
def test_an_action_stops_at_the_announced_number_when_more_tasks_come_to_match(staff):
    failed_tasks(10)
    others = failed_tasks(30, queue_name="emails")
    client, query = staff("view_task", "delete_task"), "?queue_name=default"
    confirmation = act(client, "delete", others[0].pk, query=query, select_across="1")
    Task.objects.update(queue_name="default")

    response = client.post(LIST + query, fields_of(confirmation))

    assert Task.objects.count() == 30
    assert "Stopped: more rows match than announced (10)." in messages_of(response)
    assert "10 tasks deleted." in messages_of(response)


@pytest.mark.slow
def test_deleting_more_than_a_thousand_tasks_requires_typing_their_number(staff):
    rows = failed_tasks(1_001)
    client = staff("view_task", "delete_task")
    confirmation = act(client, "delete", rows[0].pk, select_across="1")
    assert "Type 1,001 to confirm:" in confirmation.content.decode()

    response = confirmation
    for typed in ("", "1000", "1002", "delete"):
        response = client.post(LIST, fields_of(response) | {"typed": typed})
        assert "The number does not match." in response.content.decode()
    assert Task.objects.count() == 1_001
    response = client.post(LIST, fields_of(response) | {"typed": "1,001"})

    assert "1,001 tasks deleted." in messages_of(response)
    assert not Task.objects.exists()


@pytest.mark.slow
def test_a_delete_in_batches_asks_for_the_number_only_once(staff, monkeypatch):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    rows = failed_tasks(1_001)
    client = staff("view_task", "delete_task")
    response = client.post(LIST, fields_of(act(client, "delete", rows[0].pk, select_across="1")) | {"typed": "1001"})

    while response.status_code == 200:
        response = client.post(LIST, fields_of(response))

    assert not Task.objects.exists()


@pytest.mark.parametrize("action", ["cancel", "cancel_running"])
def test_no_button_that_cancels_tasks_is_labelled_just_cancel(staff, action):
    handle = task_for(action)
    client = staff("view_task", "cancel_task")

    pages = [
        client.get(reverse("admin:horsies_django_task_change", args=[handle.id])),
        client.get(reverse("admin:horsies_django_task_do", args=[handle.id, action])),
        act(client, action, handle.id, select_across="1"),
    ]

    buttons = [re.findall(r"<(?:a|button)[^>]*button[^>]*>([^<]+)<", page.content.decode()) for page in pages]
    assert all("Cancel" not in labels for labels in buttons)
    assert {labels[-2] for labels in buttons[1:]} <= {"Cancel 1 task", "Cancel and stop 1 task"}
    assert all(labels[-1] == "Go back" for labels in buttons[1:])


def test_a_confirmation_asks_a_question_with_the_number_of_the_tasks(staff):
    failed_tasks(2)
    client = staff("view_task", "delete_task")
    ids = [str(key) for key in Task.objects.values_list("pk", flat=True)]

    def title(*keys):
        html = client.post(LIST, {"action": "delete", "_selected_action": keys, "index": "0"}).content.decode()
        return re.search("<h1>(.*?)</h1>", html)[1]

    assert title(*ids) == "Delete 2 tasks?"
    assert title(ids[0]) == f"Delete task {Task.objects.get(pk=ids[0])}?"


def test_no_button_is_shown_when_no_task_matches(staff):
    rows = failed_tasks(1)
    client = staff("view_task", "cancel_task")

    html = act(client, "cancel", rows[0].pk, query="?state=pending", select_across="1").content.decode()

    assert 'name="confirmed"' not in html
    assert "Back to the list" in html


@pytest.mark.slow
def test_counting_reads_a_bounded_part_of_the_table_in_each_statement(staff, monkeypatch):
    count_in_chunks(monkeypatch, 100)
    rows = failed_tasks(500, queue_name="emails")
    client = staff("view_task", "cancel_task")

    with CaptureQueriesContext(connection) as queries:
        act(client, "cancel", rows[0].pk, query="?queue_name=emails", select_across="1")

    counting = [query["sql"] for query in queries if '"horsies_tasks"' in query["sql"]]
    assert not any("COUNT(" in sql for sql in counting)
    assert all("LIMIT" in sql for sql in counting if "EXPLAIN" not in sql)


@pytest.mark.slow
def test_the_admin_log_and_the_logger_record_how_many_tasks_changed(staff, caplog, monkeypatch):
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0)
    rows = failed_tasks(700)
    client = staff("view_task", "retry_task", "delete_task")
    caplog.set_level("INFO", "horsies_django.admin")

    response = client.post(LIST, fields_of(act(client, "retry", rows[0].pk, select_across="1")))
    client.post(LIST, fields_of(response))
    act(client, "delete", rows[0].pk, rows[1].pk, confirmed="1")

    messages = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert "500 changed, 0 skipped." in messages[0]
    assert "200 changed, 0 skipped. So far: 700 changed, 0 skipped." in messages[1]
    user = LogEntry.objects.first().user_id
    logged = [record.getMessage() for record in caplog.records if record.name == "horsies_django.admin"]
    assert logged == [
        f"admin action='Retry' model=horsies_django.Task user={user} done=500 left_alone=0",
        f"admin action='Retry' model=horsies_django.Task user={user} done=200 left_alone=0",
        f"admin action='Delete' model=horsies_django.Task user={user} done=0 left_alone=2",
    ]


@pytest.mark.slow
def test_select_all_states_no_number_before_counting(staff):
    failed_tasks(60)

    html = staff("view_task", "retry_task").get(LIST).content.decode()

    assert "Select all matching rows on all pages" in html
    assert "Select all 50" not in html


@pytest.mark.slow
def test_a_failed_task_of_a_completed_workflow_offers_no_retry(staff, drain):
    bad = tasks.fail.node()()
    tail = tasks.noop.node(waits_for=[bad], allow_failed_deps=True)()
    policy = SuccessPolicy([SuccessCase([tail])])
    horsies_django.Workflow("lenient", [bad, tail], success_policy=policy).start()
    drain()
    page = f"{LIST}{Task.objects.get(task_name=tasks.fail.module_path).pk}/"
    client = staff("view_task", "retry_task")

    assert "/do/retry/" not in client.get(f"{page}change/").content.decode()
    html = client.post(f"{page}do/retry/", follow=True).content.decode()

    assert "1 was skipped: its state or its workflow does not allow the action." in html
