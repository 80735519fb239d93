"""The page of a batch says that it is one, and retries its failures."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from horsies_django import Batch
from horsies_django.models import Task
from tests.admin.client import html_of, log_in, messages_of
from tests.jobs import tasks

pytestmark = pytest.mark.once


def page_of(client, handle):
    return client.get(reverse("admin:horsies_django_workflow_change", args=[handle.id])).content.decode()


def counts_of(html):
    return re.findall(r'href="\?state=(\w+)&amp;of=0#nodes"><span[^>]*>.</span> ([^<]+)<', html)


@pytest.mark.slow
def test_a_batch_counts_its_tasks_by_state_and_retries_those_that_failed(client, drain):
    client = log_in(client, "view_workflow", "view_task", "retry_workflow")
    with Batch("newsletter", on_complete=tasks.noop) as batch:
        batch.add_many(tasks.add, [{"a": number} for number in range(5)])
        batch.add_many(tasks.fail, [{}, {}])
    waiting = page_of(client, batch.handle)
    drain()
    html = page_of(client, batch.handle)

    assert "Batch of 7 tasks" in waiting
    assert counts_of(waiting) == [("ENQUEUED", "7 Enqueued")]
    assert "nodes have finished</span>" not in waiting
    assert counts_of(html) == [("COMPLETED", "5 Completed"), ("FAILED", "2 Failed")]
    failed = client.get(f"{reverse('admin:horsies_django_workflow_change', args=[batch.handle.id])}?state=FAILED&of=0")
    assert failed.content.decode().count("tests.jobs.tasks.fail") >= 2
    assert "Retry failed tasks" in html
    assert "Retry failed nodes" not in html
    url = reverse("admin:horsies_django_workflow_do", args=[batch.handle.id, "retry"])
    assert "2 nodes run again." in client.post(url).content.decode()
    assert ("FAILED", "2 Failed") in counts_of(page_of(client, batch.handle))
    answer = client.post(url, {"confirmed": "1"})
    assert messages_of(answer) == "Failed nodes of 1 workflow re-queued. 2 nodes run again."
    assert ("ENQUEUED", "2 Enqueued") in counts_of(page_of(client, batch.handle))


def test_other_workflows_are_no_batches_and_the_page_of_a_task_names_its_batch(client, transactional_db):
    from horsies_django import Workflow

    client = log_in(client, "view_workflow", "view_task", "retry_workflow")
    handle = Workflow("import", [tasks.noop.node()()]).start()
    with Batch("newsletter") as batch:
        batch.add(tasks.noop)

    assert "Batch of" not in page_of(client, handle)
    row = Task.objects.get(workflow_id=batch.handle.id)
    assert re.search(r'>newsletter</a> <span class="quiet">batch, Running</span>', html_of(client, row))
