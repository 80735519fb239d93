"""The admin's list and pages of limit keys."""

import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models.functions import Now
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from horsies_django.db.expressions import NowPlus
from horsies_django.models import Limit, Task, depths
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


def limit_page(client):
    return client.get(reverse("admin:horsies_django_limit_change", args=[Limit.objects.get().pk])).content.decode()


def test_the_tasks_with_a_place_are_listed_by_name_with_state_and_since_when(client):
    held, _, *_ = send("acme", "acme", "acme")
    Task.objects.filter(pk=held.id).update(status="RUNNING", claim=1, claimed_by_worker_id="w", started_at=Now())
    client = log_in(client, "view_limit", "view_task")

    html = limit_page(client)

    rows = re.findall(r'<th scope="row"><a href="[^"]*">([^<]+)</a></th><td>(.*?)</td><td>(.*?)</td>', html)
    assert [name for name, _, _ in rows] == [limited.two_per_user.module_path] * 2
    assert "Running" in rows[0][1]
    assert "Pending" in rows[1][1]
    assert all("<time datetime=" in since for _, _, since in rows)
    assert "2 of 2" in html


@pytest.mark.slow
def test_what_waits_is_counted_and_its_list_is_linked(client):
    *_, third, fourth = send("acme", "acme", "acme", "acme")
    (other,) = send("bolt")
    client = log_in(client, "view_limit", "view_task")
    key = Task.objects.get(pk=third.id).limit_key

    html = client.get(reverse("admin:horsies_django_limit_change", args=[key])).content.decode()
    (address,) = re.findall(r'<a href="([^"]*waits_for_limit[^"]*)">2 tasks</a>', html)
    found = client.get(unescape(address)).content.decode()

    assert str(third.id) in found
    assert str(fourth.id) in found
    assert found.count('class="field-shown_name"') == 2
    assert str(other.id) not in found
    for odd in ("x", "x" * 256, "\0"):
        answer = client.get(reverse("admin:horsies_django_task_changelist"), {"waits_for_limit": odd})
        assert 'class="field-shown_name"' not in answer.content.decode()


def texts(html, name):
    """Return the texts of a column of the list, or of a field of the page."""
    found = re.findall(rf'field-{name}[^>]*>(?:\s*<div>.*?<div class="readonly">)?(.*?)</(?:td|div)>', html, re.DOTALL)
    return [unescape(strip_tags(text)).split("\n")[-1].strip() for text in found]  # a label stands before the value


def block(key, seconds, **columns):
    blocked = {"deferred": True, "blocked": True, "limit_key": key}
    return Task.objects.create(task_name="jobs.t", enqueued_at=NowPlus(-seconds), **blocked, **columns)


def test_each_limit_shows_how_many_tasks_it_blocks_and_since_when(client):
    for key in ("acme", "bolt", "free"):
        Limit.objects.create(key=key, max_concurrency=1)
    block("acme", 7_300)
    block("acme", 600, priority=5)
    block("acme", 9_000, priority=9, good_until=NowPlus(-1))  # no worker may start it any more
    block("bolt", 200)
    block(None, 9_999)
    client = log_in(client, "view_limit", "view_task")

    listed = client.get(reverse(LIST)).content.decode()
    pages = {
        key: client.get(reverse("admin:horsies_django_limit_change", args=[key])).content.decode()
        for key in ("acme", "free")
    }

    assert texts(listed, "blocked_tasks") == ["2 tasks", "1 task", "0 tasks"]
    assert texts(listed, "oldest_blocked") == ["2 h ago", "3 min ago", "-"]
    assert re.findall(r'<a href="[^"]*waits_for_limit=(\w+)', listed) == ["acme", "bolt"]
    assert (texts(pages["acme"], "blocked_tasks"), texts(pages["acme"], "oldest_blocked")) == (["2 tasks"], ["2 h ago"])
    assert (texts(pages["free"], "blocked_tasks"), texts(pages["free"], "oldest_blocked")) == (["0 tasks"], [])


def test_the_list_counts_blocked_tasks_up_to_a_bound_in_one_statement_by_their_index(client, monkeypatch):
    monkeypatch.setattr(depths, "MAX_COUNTED_OF_ALL", 30)
    client = log_in(client, "view_limit", "view_task")
    counts = []
    for number in (1, 10):
        keys = [f"k{place}" for place in range(number)]
        Limit.objects.bulk_create([Limit(key=key) for key in keys], ignore_conflicts=True)
        columns = {"task_name": "jobs.t", "deferred": True, "blocked": True}
        Task.objects.bulk_create([Task(limit_key=key, **columns) for key in keys for _ in range(5)])
        with CaptureQueriesContext(connection) as captured:
            html = client.get(reverse(LIST)).content.decode()
        counts.append(len(captured))

    assert counts[0] == counts[1]
    assert texts(html, "blocked_tasks") == ["3+ tasks"] * 10
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off" if connection.vendor == "postgresql" else "SELECT 1")
        explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        (counting,) = [query["sql"] for query in captured if "COUNT(*), MIN(until)" in query["sql"]]
        cursor.execute(f"{explain} {counting}".replace("%", "%%"), [])
        plan = "\n".join(map(str, cursor.fetchall()))
    assert "horsies_task_blocked" in plan
    assert not re.search(r"Seq Scan on horsies_tasks|SCAN horsies_tasks(?! USING)", plan), plan


@pytest.mark.slow
def test_a_limit_page_needs_as_many_statements_for_20_tasks_as_for_one(client):
    client = log_in(client, "view_limit", "view_task")
    counts = []
    for keys in (["acme"], ["acme"] * 20):
        send(*keys)
        Task.objects.update(deferred=False, blocked=False)
        limit_page(client)
        with CaptureQueriesContext(connection) as captured:
            html = limit_page(client)
        counts.append(len(captured))

    assert html.count('<th scope="row">') == 20
    assert "and 1 more" in html
    assert counts[0] == counts[1] <= 10


def test_fields_of_a_limit_without_a_value_are_left_out(client):
    Limit.objects.create(key="free")
    client = log_in(client, "view_limit")

    html = limit_page(client)

    assert "0 (no maximum)" in html
    assert "0 tasks" in html
    for name in ("shown_rate", "exact_next_at"):
        assert f"field-{name}" not in html


def override(client, key, **values):
    posted = {"max_concurrency_override": "", "rate_override": ""} | values
    return client.post(reverse("admin:horsies_django_limit_change", args=[key]), posted)


def test_an_override_of_a_limit_needs_its_permission_and_is_logged(client, caplog):
    send("acme", "acme", "acme")
    limit = Limit.objects.get()
    assert override(log_in(client, "view_limit"), limit.pk, max_concurrency_override="0").status_code == 403
    client = log_in(client, "view_limit", "change_limit")

    with caplog.at_level("INFO", "horsies_django.operations"):
        assert override(client, limit.pk, max_concurrency_override="1", rate_override="100/m").status_code == 302

    limit.refresh_from_db()
    assert (limit.max_concurrency, limit.max_concurrency_override, limit.rate_override) == (2, 1, "100/m")
    assert LogEntry.objects.get().change_message == "Max concurrency: empty → 1. Rate limit: empty → 100/m."
    assert "user=staff via=admin act=limit.override count=1" in caplog.text
    html = limit_page(client)
    assert "2 of 1" in html
    assert "100/m" in html


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_concurrency_override": "1000001"}, "Allowed: a whole number from 0 (no task starts) to 1000000"),
        ({"rate_override": "often"}, "Allowed: a number, a slash and s, m, h or d"),
    ],
)
def test_an_invalid_override_of_a_limit_is_refused_in_the_form(client, values, message):
    send("acme")

    response = override(log_in(client, "view_limit", "change_limit"), Limit.objects.get().pk, **values)

    assert message in response.content.decode()
    assert not Limit.objects.exclude(max_concurrency_override=None, rate_override=None).exists()
