"""The pages of limits by key."""

import pytest
from django.test import TestCase
from django.urls import reverse

from horsies_django.models import Limit
from tests.admin.client import log_in
from tests.jobs import limited

pytestmark = pytest.mark.django_db

LIST = "admin:horsies_django_limit_changelist"


def sent(*keys):
    with TestCase.captureOnCommitCallbacks(execute=True):
        return [limited.two_of.send(key) for key in keys]


def test_a_limit_shows_who_has_a_place_and_how_many_wait(client):
    first, second, third = sent("acme", "acme", "acme")
    client = log_in(client, "view_limit", "view_task")

    page = client.get(reverse("admin:horsies_django_limit_change", args=[Limit.objects.get().pk])).content.decode()

    assert f"/task/{first.id}/change/" in page
    assert f"/task/{second.id}/change/" in page
    assert str(third.id) not in page


def test_limits_are_found_by_how_their_keys_begin(client):
    sent("acme", "bolt")
    client = log_in(client, "view_limit")

    found = client.get(reverse(LIST), {"q": "tests.jobs.limited.two_of:a"}).content.decode()

    assert "two_of:acme" in found
    assert "two_of:bolt" not in found
    assert client.get(reverse(LIST), {"q": "\0"}).status_code == 200
