"""The admin's list and pages of heartbeats."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.core.status import BeatRole
from horsies_django.models import Heartbeat, Task, Worker
from tests.admin.client import log_in
from tests.jobs import tasks

pytestmark = pytest.mark.django_db

LIST = "/admin/horsies_django/heartbeat/"


@pytest.fixture
def handles():
    """Send three tasks, and record heartbeats of each role for them."""
    sent = [tasks.noop.send() for _ in range(3)]
    Worker.objects.register("w<b>", "", "host", 1)
    for role in BeatRole:
        for task in Task.objects.all():
            Heartbeat.objects.create(task=task, role=role, sender_id="w<b>", hostname="<i>host", pid=1)
    return sent


def test_the_list_shows_the_newest_heartbeats_first_in_few_queries(client, handles):
    client = log_in(client, "view_heartbeat")

    with CaptureQueriesContext(connection) as captured:
        response = client.get(LIST)

    html = response.content.decode()
    keys = [heartbeat.pk for heartbeat in response.context["cl"].result_list]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 6
    assert str(handles[0].id) in html
    assert "w&lt;b&gt;</td>" in html
    assert "<i>host" not in html
    assert len(captured) <= 12


def test_a_search_finds_the_heartbeats_of_a_task(client, handles):
    client = log_in(client, "view_heartbeat")

    def found(**query):
        return len(client.get(LIST, query).context["cl"].result_list)

    assert found(q=str(handles[0].id)) == 2
    assert found(q="nonsense") == 0


@pytest.mark.slow
def test_the_pages_of_the_list_show_each_heartbeat_once(client, handles):
    for _ in range(20):
        for task in Task.objects.all():
            Heartbeat.objects.create(task=task, role=BeatRole.RUNNER, sender_id="w<b>", hostname="host", pid=1)
    client = log_in(client, "view_heartbeat")

    for query, count in (("?", 66), (f"?q={handles[0].id}", 22)):
        seen, link = [], query
        while link:
            page = client.get(LIST + link).context["cl"]
            seen += [heartbeat.pk for heartbeat in page.result_list]
            link = page.older_url
        assert seen == sorted(set(seen), reverse=True)
        assert len(seen) == count
    for invalid in ("nonsense", "-1", str(10**30)):
        assert len(client.get(LIST, {"before": invalid}).context["cl"].result_list) == 50


def test_heartbeats_are_read_only_with_every_permission(client, handles):
    client = log_in(client, "view_heartbeat", "add_heartbeat", "change_heartbeat", "delete_heartbeat")
    key = Heartbeat.objects.first().pk

    assert client.get(f"{LIST}{key}/change/").status_code == 200
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(f"{LIST}{key}/delete/", {"post": "yes"}).status_code == 403
    assert client.post(f"{LIST}{key}/change/", {"role": "x"}).status_code == 403


def test_the_list_of_heartbeats_requires_the_view_permission(client, handles):
    assert client.get(LIST).status_code == 302
    assert log_in(client, "view_task").get(LIST).status_code == 403
