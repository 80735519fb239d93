"""The unique key on the page of a task."""

from datetime import timedelta

import pytest
from django.utils import timezone

from horsies_django.admin.tasks.fields import describe_unique_until
from horsies_django.models import Task

NOW = timezone.now()
LATER, EARLIER = NOW + timedelta(hours=1), NOW - timedelta(hours=1)


@pytest.mark.once
@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({}, "until it has finished"),
        ({"status": "COMPLETED"}, "until it has finished (no longer)"),
        ({"unique_until": "started"}, "until it starts"),
        ({"unique_until": "started", "status": "RUNNING"}, "until it starts (no longer)"),
        ({"unique_until": "success", "status": "FAILED"}, "until it completes"),
        ({"unique_until": "released"}, "no longer: the key was released"),
    ],
)
def test_each_unique_until_rule_is_described_in_words(row, text):
    assert describe_unique_until(Task(unique_key="k", **row), NOW) == text


@pytest.mark.once
def test_a_unique_period_is_described_with_its_end():
    held = describe_unique_until(
        Task(unique_key="k", unique_until="period", status="FAILED", unique_expires_at=LATER), NOW
    )
    over = describe_unique_until(Task(unique_key="k", unique_until="period", unique_expires_at=EARLIER), NOW)

    assert held.startswith("regardless of the outcome, at most until ")
    assert not held.endswith("(no longer)")
    assert over.endswith(" (no longer)")


@pytest.mark.django_db
@pytest.mark.once
def test_the_task_page_shows_the_unique_key_and_its_rule(admin_client):
    row = Task.objects.create(task_name="x", unique_key="shop 7", unique_until="success")
    plain = Task.objects.create(task_name="x")

    page = admin_client.get(f"/admin/horsies_django/task/{row.pk}/change/").text
    without = admin_client.get(f"/admin/horsies_django/task/{plain.pk}/change/").text

    assert "shop 7" in page
    assert "until it completes" in page
    assert "until it has finished" not in without
