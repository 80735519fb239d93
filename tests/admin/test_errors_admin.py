"""The list of errors, the page of one, and the tasks and actions that they lead to."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import localtime

from horsies_django import task
from horsies_django.core.compat import task_backends
from horsies_django.models import ErrorGroup, Rollup, Task, TaskAttempt
from horsies_django.reaper.rollup import roll_up
from tests.admin.client import html_of
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/horsies_django/errorgroup/"
ACTING = ("view_task", "retry_task", "run_now_task", "cancel_task", "delete_task")


@task(sensitive=["card"])
def charge(order: int, card: str) -> None:
    raise ValueError(f"order {order} is refused")


@task(max_attempts=2, backoff=3600)
def ship(order: int) -> None:
    raise OSError("no route")


def roll():
    """Roll up all attempts."""
    TaskAttempt.objects.update(finished_at=F("finished_at") - timedelta(seconds=6))
    for _ in roll_up(task_backends["default"].config):
        pass


def group_of(name):
    """Return the error group of the task with this name."""
    return ErrorGroup.objects.get(location__endswith=f".{name}")


def page_of(group):
    return reverse("admin:horsies_django_errorgroup_change", args=[getattr(group, "pk", group)])


def text_of(html):
    """Return the text of a page's content, with a space for each tag."""
    content = html[html.index('id="content"') :]
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", content)))


def get(client, address):
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


def buttons(html):
    """Return the address and the hidden fields of each button, by its label."""
    found = {}
    for address, body, label in re.findall(
        r'<form method="post" action="([^"]+)">(.*?)<button[^>]*>([^<]*)</button></form>', html, re.DOTALL
    ):
        fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', body))
        found[unescape(label)] = (unescape(address), fields)
    return found


def hidden(html):
    """Return the hidden fields of the last form of a confirmation page."""
    fields = re.findall(
        r'<input type="hidden" name="([^"]+)" value="([^"]*)"', html[html.rindex('<form method="post">') :]
    )
    return {name: unescape(value) for name, value in fields}


def seed(fingerprint, location="shop.tasks.charge", exception_class="shop.errors.Refused", error_code="X"):
    """Create an error group without attempts."""
    now = datetime.now(UTC)
    columns = {"exception_class": exception_class, "error_code": error_code, "location": location}
    return ErrorGroup.objects.create(
        fingerprint=fingerprint, first_seen_at=now, last_seen_at=now, last_attempt_id=1, **columns
    )


def count(fingerprint, number, ago=1, span="M", **columns):
    """Create a roll-up of failed attempts that many minutes or hours ago."""
    start = datetime.now(UTC).replace(second=0, microsecond=0)
    start = start - timedelta(minutes=ago) if span == "M" else start.replace(minute=0) - timedelta(hours=ago)
    defaults = {"queue_name": "default", "task_name": "shop.tasks.charge", "outcome": "FAILED"}
    Rollup.objects.create(span=span, start=start, fingerprint=fingerprint, count=number, **defaults | columns)


def test_the_list_names_each_error_and_counts_its_failed_attempts(staff):
    seed("a" * 12, exception_class="builtins.ValueError", error_code="UNHANDLED_EXCEPTION")
    seed("b" * 12, exception_class="", error_code="SOLD_OUT", location="shop.tasks.ship")
    count("a" * 12, 1204)
    count("a" * 12, 30, will_retry=True, task_name="shop.tasks.refund")
    count("b" * 12, 7, queue_name="emails")
    count("", 5)

    html = get(staff("view_task"), LIST)

    text = text_of(html)
    assert "What fails most, last hour" in text
    assert "ValueError builtins in shop.tasks.charge 1,234 30 shop.tasks. charge +1" in text
    assert "SOLD_OUT in shop.tasks.ship 7 0" in text
    assert re.search(r"Without a group [^0-9]* 5 0", text)
    assert "Total 1,246 30" in text
    assert "UNHANDLED_EXCEPTION" not in text


@pytest.mark.slow
def test_errors_beyond_the_first_fifty_are_counted_in_one_row(staff):
    for number in range(53):
        fingerprint = f"{number:012x}"
        seed(fingerprint)
        count(fingerprint, 100 + number)

    text = text_of(get(staff("view_task"), LIST))

    assert "3 more errors 303 0" in text
    assert text.count("Refused shop.errors") == 50


@pytest.mark.slow
def test_an_error_has_the_same_number_on_the_overview_in_the_list_and_on_its_page(staff):
    seed("a" * 12)
    numbers = {"5m": 1, "1h": 3, "24h": 7, "7d": 15}
    for ago, span, number in ((1, "M", 1), (30, "M", 2), (1, "H", 7), (100, "H", 8)):
        count("a" * 12, number, ago, span)
    client = staff("view_task")

    for period, shown in numbers.items():
        for address in ("/admin/horsies_django/overview/", LIST):
            html = get(client, f"{address}?period={period}")
            row = re.search(r">Refused</a>.*?</tr>", html, re.DOTALL)[0]
            assert f'<td class="horsies-number">{shown}</td>' in row
        link = re.search(rf'href="([^"]*/{"a" * 12}/[^"]*)"', html)[1]
        text = text_of(get(client, unescape(link)))
        assert f"{shown} failed attempt" in text


def test_an_unknown_period_is_the_last_hour(staff):
    assert "What fails most, last hour" in text_of(get(staff("view_task"), f"{LIST}?period=1y"))


def test_the_list_can_be_filtered_by_task_and_queue(staff):
    seed("a" * 12)
    seed("b" * 12, location="shop.tasks.ship")
    count("a" * 12, 3)
    count("b" * 12, 4, task_name="shop.tasks.ship", queue_name="emails")
    client = staff("view_task")

    for query in ("task=shop.tasks.ship", "queue=emails"):
        html = get(client, f"{LIST}?period=1h&{query}")
        text = text_of(html)
        assert "in shop.tasks.ship 4 0" in text
        assert "Total 4 0" in text
        assert "in shop.tasks.charge" not in text
        assert f'href="?{query}&amp;period=24h"' in html
    assert "No counted failures match." in text_of(get(client, f"{LIST}?task=%00<b>"))


@pytest.mark.slow
def test_the_page_of_an_error_has_the_last_traceback_and_its_task_with_masked_arguments(staff, drain):
    handle = charge.send(order=7, card="4242-4242")
    drain()
    roll()

    html = get(staff("view_task"), page_of(group_of("charge")))

    text = text_of(html)
    assert "ValueError in tests.admin.test_errors_admin.charge" in text
    assert "order 7 is refused" in text
    assert "raise ValueError(f" in text
    assert f'href="{reverse("admin:horsies_django_task_change", args=[handle.id])}"' in html
    assert "order=7" in text
    assert "4242" not in html
    assert re.search(r"Last failing \d{4}-\d\d-\d\d \d\d:\d\d", text)


@pytest.mark.slow
def test_the_page_of_an_error_says_from_when_until_when_it_failed_and_not_that_it_still_fails(staff, drain):
    for number in range(2):
        charge.send(number, card="4242")
    drain()
    for minutes, attempt in zip((58, 30), TaskAttempt.objects.order_by("pk"), strict=True):
        TaskAttempt.objects.filter(pk=attempt.pk).update(finished_at=F("finished_at") - timedelta(minutes=minutes))
    roll()
    group = group_of("charge")

    text = text_of(get(staff("view_task"), page_of(group)))

    first, last = (f"{localtime(at):%Y-%m-%d %H:%M}" for at in (group.first_seen_at, group.last_seen_at))
    assert f"Last failing {first} to {last} " in text
    assert "Failing since" not in text


@pytest.mark.slow
def test_the_page_of_an_error_counts_its_tasks_now_and_links_to_them(staff, drain):
    for number in range(3):
        ship.send(number)
    tasks.fail.send()
    drain()
    roll()
    client, group = staff("view_task"), group_of("ship")

    html = get(client, page_of(group))

    links = [unescape(link) for link in re.findall(r'href="([^"]*task/\?fingerprint[^"]*state=[^"]*)"', html)]
    states = {dict(parse_qsl(urlsplit(link).query))["state"]: link for link in links}
    assert states.keys() == {"failed", "retrying"}
    assert "Retrying 3" in text_of(html)
    listed = client.get(states["retrying"]).context["cl"]
    assert {row.task_name for row in listed.result_list} == {ship.module_path}
    assert len(listed.result_list) == 3
    assert "error: OSError in tests.admin.test_errors_admin.ship" in listed.descriptions
    assert len(client.get(states["failed"]).context["cl"].result_list) == 0


@pytest.mark.slow
def test_a_list_filtered_by_a_fingerprint_that_is_none_finds_nothing(staff):
    columns = {"task_name": "x", "status": "FAILED", "error_code": "X", "failed_at": datetime.now(UTC)}
    Task.objects.create(fingerprint="a" * 12, **columns)
    client = staff("view_task")

    found = {
        asked: len(client.get("/admin/horsies_django/task/", {"fingerprint": asked}).context["cl"].result_list)
        for asked in ("a" * 12, "b" * 12, "A" * 12, "a", "a" * 13)
    }
    assert found == {"a" * 12: 1, "b" * 12: 0, "A" * 12: 0, "a": 0, "a" * 13: 0}


@pytest.mark.slow
def test_all_failed_tasks_of_an_error_are_retried_after_a_confirmation(staff, drain):
    for number in range(3):
        charge.send(order=number, card="")
    other = tasks.fail.send()
    drain()
    roll()
    client = staff(*ACTING)
    address, fields = buttons(get(client, page_of(group_of("charge"))))["Retry 3 failed tasks"]

    asked = client.post(address, fields)

    assert asked.status_code == 200
    html = asked.content.decode()
    assert "Retry 3 tasks?" in text_of(html)
    assert "error: ValueError in tests.admin.test_errors_admin.charge" in text_of(html)
    assert Task.objects.filter(status="FAILED").count() == 4
    assert client.post(address, hidden(html)).status_code == 302
    assert [row.pk for row in Task.objects.filter(status="FAILED")] == [other.id]


@pytest.mark.slow
def test_retrying_tasks_of_an_error_are_run_now_or_cancelled(staff, drain):
    for number in range(2):
        ship.send(number)
    drain()
    client, group = staff(*ACTING), Task.objects.values_list("fingerprint", flat=True)[0]
    offered = buttons(get(client, page_of(group)))
    assert offered.keys() == {"Run 2 retrying tasks now", "Cancel 2 retrying tasks"}

    address, fields = offered["Cancel 2 retrying tasks"]
    html = client.post(address, fields).content.decode()
    assert "Cancel 2 tasks?" in text_of(html)
    assert client.post(address, hidden(html)).status_code == 302

    assert set(Task.objects.values_list("status", flat=True)) == {"CANCELLED"}


@pytest.mark.slow
def test_thousands_are_counted_to_the_end_and_deleted_only_after_their_number_is_typed(staff):
    now = datetime.now(UTC)
    columns = {"task_name": "x", "status": "FAILED", "failed_at": now, "error_code": "X"}
    Task.objects.bulk_create(Task(fingerprint="a" * 12, **columns) for _ in range(1_001))
    kept = Task.objects.create(fingerprint="b" * 12, **columns)
    seed("a" * 12)
    client = staff(*ACTING)
    address, fields = buttons(get(client, page_of("a" * 12)))["Delete 1,001 failed tasks"]

    html = client.post(address, fields).content.decode()
    assert "Delete 1,001 tasks?" in text_of(html)
    assert "Type 1,001 to confirm:" in text_of(html)
    assert "The number does not match." in client.post(address, hidden(html) | {"typed": "1000"}).content.decode()
    assert Task.objects.count() == 1_002
    client.post(address, hidden(html) | {"typed": "1,001"})

    assert Task.objects.get() == kept


@pytest.mark.slow
def test_an_error_that_is_not_counted_yet_has_a_page_too(staff, drain):
    charge.send(order=7, card="")
    drain()
    client = staff("view_task")

    text = text_of(get(client, page_of(Task.objects.get().fingerprint)))

    assert "ValueError in tests.admin.test_errors_admin.charge" in text
    assert "Last seen not counted yet" in text
    assert "order 7 is refused" in text
    assert client.get(page_of("b" * 12)).status_code == 302
    assert client.get(page_of("nonsense")).status_code == 302


@pytest.mark.slow
def test_an_error_whose_tasks_are_deleted_says_so(staff, drain):
    charge.send(order=7, card="")
    drain()
    roll()
    Task.objects.all().delete()

    html = get(staff(*ACTING), page_of(group_of("charge")))

    assert "The tasks of this error have been deleted." in text_of(html)
    assert "1 failed attempt:" in text_of(html)
    assert buttons(html) == {}


@pytest.mark.slow
def test_a_user_who_may_only_view_tasks_gets_no_button(staff, drain):
    charge.send(order=7, card="")
    drain()

    assert buttons(get(staff("view_task"), page_of(Task.objects.get().fingerprint))) == {}


def test_a_read_only_admin_offers_retry_and_cancel_only(staff, drain, settings):
    settings.TASKS = {
        **settings.TASKS,
        "default": {**settings.TASKS["default"], "OPTIONS": {"admin": {"read_only": True}}},
    }
    now = datetime.now(UTC)
    columns = {"task_name": "x", "fingerprint": "a" * 12, "error_code": "X"}
    Task.objects.create(status="FAILED", failed_at=now, **columns)
    later = now + timedelta(hours=1)
    Task.objects.create(deferred=True, enqueued_at=later, next_retry_at=later, claim=1, attempt=1, **columns)
    seed("a" * 12)

    assert buttons(get(staff(*ACTING), page_of("a" * 12))).keys() == {
        "Retry 1 failed task",
        "Cancel 1 retrying task",
    }


@pytest.mark.slow
def test_the_page_of_a_failed_task_links_to_all_tasks_with_its_error(staff, drain):
    handle = charge.send(order=7, card="")
    drain()
    client = staff("view_task")

    html = html_of(client, handle)

    address = page_of(Task.objects.get().fingerprint)
    assert html.count(f'<a href="{address}">All tasks with this error</a>') == 1
    assert client.get(address).status_code == 200


@pytest.mark.slow
def test_names_are_escaped(staff):
    hostile = "<script>alert(1)</script>"
    seed("a" * 12, location=hostile, exception_class=hostile, error_code=hostile)
    count("a" * 12, 3, task_name=hostile, queue_name=hostile)
    client = staff("view_task")

    for address in (LIST, page_of("a" * 12), f"{LIST}?task={hostile}"):
        assert "<script>alert" not in get(client, address)


@pytest.mark.slow
def test_the_pages_take_few_statements_with_many_errors(staff):
    for number in range(60):
        fingerprint = f"{number:012x}"
        seed(fingerprint)
        for task_name in ("a.b", "c.d"):
            count(fingerprint, number + 1, task_name=task_name, queue_name=task_name)
    client = staff(*ACTING)

    for address in (LIST, page_of(f"{59:012x}")):
        with CaptureQueriesContext(connection) as captured:
            get(client, address)
        statements = [query["sql"] for query in captured]
        assert len(statements) <= 14, statements
