"""The admin's pages of a gathering task and of a batch."""

import re

import pytest
from django.urls import reverse

from horsies_django import Batch
from tests.admin.client import html_of, log_in
from tests.batches import jobs as batch_jobs
from tests.enqueue.grouping import jobs

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def test_the_page_of_a_gathering_task_shows_its_first_calls_masked(client):
    log_in(client, "view_task")
    calls = [{"customer_id": 1, "password": "hunter2", "text": f"call {number}"} for number in range(60)]
    handle = jobs.mail.send_many(calls)[0]

    text = html_of(client, handle)

    assert "customer-1" in text
    assert ("call 0" in text, "call 49" in text, "call 50" in text) == (True, True, False)
    assert "The first 50 of 60." in text
    assert "hunter2" not in text
    assert "aggregating" in text


def test_the_page_of_a_plain_task_shows_no_gathered_calls(client):
    log_in(client, "view_task")
    handle = batch_jobs.double.send(1)

    assert "athered calls" not in html_of(client, handle)


@pytest.mark.slow
def test_a_batch_is_labelled_in_the_list_of_workflows_and_has_a_page(client):
    log_in(client, "view_workflow", "view_workflowtask")
    with Batch("newsletter", on_success=batch_jobs.add_up) as batch:
        batch.add_many(batch_jobs.double, [{"value": value} for value in range(1_200)])

    listed = client.get(reverse("admin:horsies_django_workflow_changelist")).content.decode()
    page = client.get(reverse("admin:horsies_django_workflow_change", args=[batch.id])).content.decode()

    assert re.search(r"newsletter\s*<span[^>]*>batch</span>", listed)
    assert "Batch of 1,200 tasks" in page
