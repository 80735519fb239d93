"""The admin's list and pages of limit keys."""

import pytest
from django.test import TestCase
from django.urls import reverse

from horsies_django.models import Limit
from tests.admin.client import log_in
from tests.jobs import limited

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_django_limit_changelist"


def send(*keys):
    with TestCase.captureOnCommitCallbacks(execute=True):
        return [limited.two_per_user.send(key) for key in keys]


def test_a_limit_page_links_only_the_tasks_that_hold_a_place(client):
    first, second, third = send("acme", "acme", "acme")
    client = log_in(client, "view_limit", "view_task")

    page = client.get(reverse("admin:horsies_django_limit_change", args=[Limit.objects.get().pk])).content.decode()

    assert f"/task/{first.id}/change/" in page
    assert f"/task/{second.id}/change/" in page
    assert str(third.id) not in page


def test_limits_are_found_by_a_prefix_of_their_key(client):
    send("acme", "bolt")
    client = log_in(client, "view_limit")

    found = client.get(reverse(LIST), {"q": "tests.jobs.limited.two_per_user:a"}).content.decode()

    assert "two_per_user:acme" in found
    assert "two_per_user:bolt" not in found
    assert client.get(reverse(LIST), {"q": "\0"}).status_code == 200
