"""The page of a row shows each text only where it is true."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.models import Schedule, Task, TaskAttempt
from horsies_django.models import Workflow as WorkflowRow
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.once]

RETRY_TEXT = "It will be retried after attempt 1"


def page(client, name, row, **query):
    return client.get(reverse(f"admin:horsies_django_{name}_change", args=[row.pk]), query).content.decode()


def test_a_workflow_page_says_that_it_was_replaced_only_where_it_was(staff):
    client = staff("view_workflow")
    key = Workflow("top", [tasks.noop.node()()]).start().id
    top = WorkflowRow.objects.get(pk=key)
    child, replaced = (
        WorkflowRow.objects.create(name="below", root_id=key, depth=1, is_replaced=is_replaced)
        for is_replaced in (False, True)
    )

    pages = {row.pk: page(client, "workflow", row) for row in (top, child, replaced)}

    assert [key for key, html in pages.items() if "field-is_replaced" in html] == [replaced.pk]
    assert [key for key, html in pages.items() if "was replaced by a new one" in html] == [replaced.pk]


@pytest.mark.slow
def test_a_page_announces_a_retry_only_while_the_task_waits_for_it(staff):
    client = staff("view_task", "view_workflow")
    flow = WorkflowRow.objects.get(pk=Workflow("f", [tasks.noop.node(node_id="n")()]).start().id)
    task = Task.objects.get(workflow_id=flow.pk)
    hour = timedelta(hours=1)
    times = {"due_at": Now(), "started_at": Now(), "finished_at": Now()}
    TaskAttempt.objects.create(task=task, attempt=1, outcome="FAILED", will_retry=True, error_code="DOWN", **times)
    retry_times = {"next_retry_at": timezone.now() + hour, "enqueued_at": timezone.now() + hour, "attempt": 1}
    Task.objects.filter(pk=task.pk).update(deferred=True, retry_count=1, error_code="DOWN", **retry_times)

    html = page(client, "task", task)
    assert "field-page_next_retry_at" in html
    assert "will be retried" in html
    assert RETRY_TEXT in page(client, "workflow", flow, node="0")

    past = timezone.now() - hour
    Task.objects.filter(pk=task.pk).update(deferred=False, next_retry_at=past, enqueued_at=past)
    assert "field-page_next_retry_at" not in page(client, "task", task)
    assert RETRY_TEXT not in page(client, "workflow", flow, node="0")
    assert "No worker that is online" in page(client, "workflow", flow, node="0")

    Task.objects.filter(pk=task.pk).update(status="COMPLETED", completed_at=Now(), error_code=None)
    html = page(client, "task", task)
    assert "field-page_next_retry_at" not in html
    assert "field-page_error" not in html

    Task.objects.filter(pk=task.pk).update(attempt=2)
    assert "retried" in page(client, "task", task)


def test_a_group_is_shown_as_open_until_its_first_claim(staff):
    client = staff("view_task")
    group = Task.objects.create(task_name="jobs.g", group_key="k", item_count=0)
    text = "Calls with this key are added until the task is first claimed."

    assert text in page(client, "task", group)
    Task.objects.filter(pk=group.pk).update(status="COMPLETED", completed_at=Now(), claim=1)
    assert text not in page(client, "task", group)
    assert "closed" in page(client, "task", group)


def test_a_declared_schedule_lists_the_actions_that_the_user_may_take(staff, client):
    columns = {"task_name": tasks.noop.module_path, "timing": "every:300", "source": "shop"}
    declared = Schedule(name="declared", declared_enabled=True, **columns)
    removed = Schedule(name="gone", enabled=False, disabled_by="CODE", **columns)
    declared.save()
    removed.save()
    staff("view_schedule", "run_now_schedule")

    html = page(client, "schedule", declared)
    assert "Defined in code (shop); edit it there. Allowed here: Run now." in html
    assert "E.g. cron:" not in html  # the syntax help is only for those who may edit
    html = page(client, "schedule", removed)
    assert "It was removed from the code of shop and no longer runs by itself." in html
    assert "edit it there" not in html
