"""Crafted requests, which no page of the admin sends: they change no other rows, and the server does not fail."""

from urllib.parse import quote, urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote as quote_key
from django.db import connection

from horsies_django import Workflow as Definition
from horsies_django import wait_for_event
from horsies_django.admin.actions import action_admin as acting
from horsies_django.admin.actions.admin_action import AdminAction
from horsies_django.models import Queue, Task, Workflow, WorkflowTask
from tests.admin import page_jobs
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.once]

NEWEST = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def act(client, model, query, *keys, **data):
    address = f"/admin/horsies_django/{model}/?{urlencode(query)}"
    return client.post(address, {"index": "0", "_selected_action": [str(key) for key in keys], **data})


def counted(client, model, key, action):
    """Return the form fields that confirm an action on all rows of an unfiltered list."""
    page = act(client, model, {}, key, action=action, select_across="1")
    return {"confirmed": "1"} | {name: str(value) for name, value in page.context["hidden"]}


@pytest.mark.parametrize(
    "query",
    [
        {"state": "nonsense"},
        {"sent": "aeon"},
        {"sent_to": "9999-99-99"},
        {"queue_name": "defa\0ult"},
        {"priority": "5"},
        {"q": "\0"},
        *(
            pytest.param(query, marks=pytest.mark.slow)
            for query in (
                {"trouble": "nonsense"},
                {"kind": "nonsense"},
                {"sent_from": "21.11.2026"},
                {"task_name": "\0"},
                {"error_code": "\0"},
                {"worker": "w\0"},
            )
        ),
    ],
)
def test_an_invalid_filter_does_not_apply_an_action_to_all_tasks(admin_client, query):
    task = tasks.noop.send()
    data = counted(admin_client, "task", task.id, "cancel")

    act(admin_client, "task", query, task.id, **data)
    assert Task.objects.get(pk=task.id).status == "PENDING"

    act(admin_client, "task", {}, task.id, **data)
    assert Task.objects.get(pk=task.id).status == "CANCELLED"  # without the filter the action applies


@pytest.mark.parametrize("query", [{"sent": "aeon"}, {"level": "nonsense"}, {"q": "\0"}, {"name": "\0"}])
def test_an_invalid_filter_does_not_apply_an_action_to_all_workflows(admin_client, query):
    handle = Definition("made", [tasks.noop.node()()]).start()
    data = counted(admin_client, "workflow", handle.id, "pause")

    act(admin_client, "workflow", query, handle.id, **data)
    assert Workflow.objects.get(pk=handle.id).status == "RUNNING"

    act(admin_client, "workflow", {}, handle.id, **data)
    assert Workflow.objects.get(pk=handle.id).status == "PAUSED"


@pytest.mark.parametrize(
    ("model", "action", "key"),
    [
        ("task", "retry", "nonsense"),
        ("task", "retry", NEWEST),
        ("workflow", "pause", "nonsense"),
        ("queue", "pause", "nonsense"),
        ("queue", "pause", "9" * 40),
        ("queue", "pause", "~a\0b"),
        ("queue", "pause", "~"),
        ("queue", "pause", "~" + "x" * 101),
        ("worker", "stop", "a\0b"),
    ],
)
def test_requests_with_impossible_keys_create_no_queue_row(admin_client, model, action, key):
    page = f"/admin/horsies_django/{model}/{quote(quote_key(key))}"

    assert act(admin_client, model, {}, key, action=action).status_code in (200, 302)
    for address in (f"{page}/change/", f"{page}/do/{action}/"):
        assert admin_client.get(address).status_code == 302
        assert admin_client.post(address).status_code in (302, 403)  # 403 where Django checks the permission first
    assert not Queue.objects.exists()


def test_an_action_skips_an_invalid_key_and_applies_to_the_others(admin_client):
    task = tasks.noop.send()

    act(admin_client, "task", {}, "nonsense", task.id, action="cancel")

    assert Task.objects.get(pk=task.id).status == "CANCELLED"


def test_pausing_without_the_view_permission_creates_no_queue_row(client, staff):
    staff("pause_queue")

    assert client.post("/admin/horsies_django/queue/~emails/do/pause/".replace("~", "%7E")).status_code == 403
    assert not Queue.objects.exists()


def test_a_failing_action_logs_the_rows_it_has_changed(admin_client, monkeypatch):
    monkeypatch.setattr(acting, "LOG_BATCH", 1)
    first, second = sorted(tasks.noop.send().id for _ in range(2))
    original_apply = AdminAction.apply

    def fail_on_second(action, rows, values):
        if rows.filter(pk=second).exists():
            raise RuntimeError("the database has gone")
        return original_apply(action, rows, values)

    monkeypatch.setattr(AdminAction, "apply", fail_on_second)
    with pytest.raises(RuntimeError):
        act(admin_client, "task", {}, first, second, action="cancel")

    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(first)]


@pytest.mark.django_db(transaction=True)
def test_a_failing_action_on_all_matching_rows_logs_the_rows_it_has_changed(admin_client, monkeypatch):
    monkeypatch.setattr(acting.ActionAdmin, "batch", 1)
    older, newer = sorted(tasks.noop.send().id for _ in range(2))

    def fail_on_older(execute, sql, params, many, context):
        if "UPDATE" in sql and any(text in str(params) for text in (str(older), older.hex)):
            raise RuntimeError("the database has gone")
        return execute(sql, params, many, context)

    data = counted(admin_client, "task", older, "cancel")
    with connection.execute_wrapper(fail_on_older), pytest.raises(RuntimeError):
        act(admin_client, "task", {}, older, **data)

    assert Task.objects.get(pk=newer).status == "CANCELLED"
    assert "1 changed" in LogEntry.objects.get().change_message


@pytest.mark.slow
def test_a_workflow_page_masks_the_sensitive_values_of_its_tasks(admin_client):
    nodes = {
        "paid": page_jobs.send_reminder.node()(recipient="geheim@x.y", note="open"),
        "paying": wait_for_event("pay"),
    }
    handle = Definition("pays", nodes).start()
    assert handle.send_event("pay", {"token": "geheim", "recipient": "geheim@x.y", "plain": "open"})
    result = {"ok": {"plain": "open", "password": "geheim", "by": ["x", {"recipient": "geheim@x.y"}]}}
    WorkflowTask.objects.filter(workflow=handle.id).update(result=result)
    Workflow.objects.filter(pk=handle.id).update(result=result, error={"data": {"recipient": "geheim@x.y"}})

    for node in (0, 1):
        html = admin_client.get(f"/admin/horsies_django/workflow/{handle.id}/change/", {"node": node}).content.decode()
        assert "geheim" not in html
        assert html.count("open") > 2
