"""The overview's chart: its period in the URL, and the lists behind its bars."""

import html as entities
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.utils.html import strip_tags

from horsies_django.core.compat import task_backends
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Task, TaskAttempt
from horsies_django.reaper.duties import run_pass
from tests.jobs import tasks

from .test_overview import minute, page, rollup

pytestmark = pytest.mark.django_db(transaction=True)


def figure(html):
    """Return the part of the page with the chart."""
    return re.search(r"<figure.*?</figure>", html, re.S)[0]


def links(html, outcome):
    """Return the URLs of the keyboard's links in the chart for an outcome."""
    found = re.findall(r'<a id="horsies-attempts-[^"]*" href="([^"]*)"', html)
    return [url for url in map(entities.unescape, found) if f"ended={outcome}&" in url]


def names(response):
    """Return the task names in the list."""
    return Counter(row.task_name.rpartition(".")[2] for row in response.context_data["cl"].result_list)


def legend(html):
    return [strip_tags(entry).strip() for entry in re.findall(r'<li class="horsies-chart-key.*?</li>', html)]


@pytest.mark.parametrize(
    ("period", "title", "buckets"),
    [
        ("5m", "Attempts, last 5 minutes, by minute", 5),
        ("1h", "Attempts, last hour, by minute", 60),
        ("24h", "Attempts, last 24 hours, by hour", 24),
        ("7d", "Attempts, last 7 days, by 6 hours", 28),
        ("nonsense", "Attempts, last hour, by minute", 60),
    ],
)
def test_the_chart_has_a_choice_of_period(staff, period, title, buckets):
    rollup() if period in ("24h", "7d") else rollup(minute(), span="M")

    response = staff("view_task").get("/admin/horsies_django/overview/", {"period": period})

    assert f'<h2 id="horsies-title-attempts">{title}</h2>' in response.content.decode()
    assert len(response.context_data["chart"].starts) == buckets
    assert legend(response.content.decode())[0] == "completed 3"


def test_six_hours_begin_at_the_readers_midnight(staff, settings):
    settings.TIME_ZONE = "Asia/Tokyo"  # nine hours ahead
    rollup()

    chart = staff("view_task").get("/admin/horsies_django/overview/?period=7d").context_data["chart"]

    assert {start.hour for start in chart.starts} == {3, 9, 15, 21}
    assert chart.starts[-1] <= datetime.now(UTC) < chart.starts[-1] + timedelta(hours=6)


@pytest.mark.slow
def test_a_bar_leads_to_the_tasks_that_it_counts(staff, drain):
    tasks.add.send(1)
    tasks.fail.send()
    tasks.flaky.send("again", 1)
    drain()
    tasks.noop.send()
    at = datetime.now(UTC) - timedelta(seconds=20)
    TaskAttempt.objects.update(finished_at=at)
    Task.objects.filter(status="COMPLETED").update(completed_at=at)
    Task.objects.filter(status="FAILED").update(failed_at=at)
    run_pass(task_backends["default"].config)
    client = staff("view_task", "view_queue")

    html = page(client)

    ((completed,), (unsuccessful,)) = links(html, "completed"), links(html, "unsuccessful")
    assert names(client.get(completed)) == {"add": 1, "flaky": 1}
    assert names(client.get(unsuccessful)) == {"fail": 1, "flaky": 1}
    for outcome, found in {"failed": {"fail": 1}, "retried": {"flaky": 1}}.items():
        (url,) = set(re.findall(rf'href="([^"]*ended={outcome}&amp;[^"]*)"', html))
        assert names(client.get(entities.unescape(url))) == found, outcome
    earlier = re.sub(r"T\d\d(%3A)\d\d", r"T00\g<1>00", completed)
    assert names(client.get(earlier)) == {}
    assert "attempt ended: completed, " in strip_tags(client.get(completed).context_data["cl"].descriptions[-1])


@pytest.mark.parametrize(
    "query", ["ended=nonsense", "ended_from=yesterday", "ended=failed&ended_to=x"], ids=["outcome", "start", "end"]
)
def test_an_unreadable_end_matches_no_task(staff, query):
    tasks.noop.send()

    response = staff("view_task").get(f"/admin/horsies_django/task/?{query}")

    assert response.status_code == 200
    assert names(response) == {}


@pytest.mark.slow
def test_the_filter_by_ended_attempts_is_shown_only_while_it_is_used(staff):
    client = staff("view_task")

    assert "Attempt ended" not in client.get("/admin/horsies_django/task/").content.decode()
    html = client.get("/admin/horsies_django/task/?ended=failed&ended_from=2026-01-01").content.decode()
    assert "Attempt ended" in html
    assert 'name="ended_from" value="2026-01-01T00:00"' in html


@pytest.mark.slow
def test_a_queue_slower_than_its_threshold_is_reported_with_the_time_since(staff, settings):
    options = settings.TASKS["default"] | {
        "QUEUES": [],
        "OPTIONS": {"queues": {"emails": {"latency_warning": "5m"}, "default": {"latency_warning": "1h"}}},
    }
    settings.TASKS = {"default": options}
    for name in ("emails", "default"):
        Task.objects.create(task_name="x", queue_name=name, enqueued_at=NowPlus(-720))
    slow = {"waits": {"40": 3}, "queue_name": "emails", "span": "M"}  # 16 minutes
    latest = minute()  # once: the next one may begin during the test
    for ago in (8, 9, 11):
        rollup(latest - timedelta(minutes=ago), **slow)
    rollup(latest - timedelta(minutes=12), **slow | {"waits": {"20": 3}})
    client = staff("view_task")

    assert "latency 12 min" not in page(client)

    Queue.objects.create(name="emails")
    html = page(staff_with(client, "view_queue"))
    since = f"{latest - timedelta(minutes=11):%H:%M}"
    assert f"emails: latency 12 min, threshold 5 min, since {since}." in re.sub("<[^>]*>", "", html)
    assert "12 min &gt; 5 min" in re.sub("<[^>]*>", "", html)
    assert html.count('class="horsies-late"') == 1
    assert "threshold 1 h" not in html
    queues = client.get("/admin/horsies_django/queue/").content.decode()
    assert re.findall(r"12 min \d+ s \(over 5 min\)", re.sub("<[^>]*>", "", queues))
    queue = client.get(f"/admin/horsies_django/queue/{Queue.objects.get().pk}/change/").content.decode()
    assert f"(over 5 min since {since})" in queue
    assert "Wait time, last hour, by minute: wait time (p95) at most ≈ 15 min" in queue
    assert "threshold 5 min" in queue


def staff_with(client, codename):
    """Give the logged-in user one more permission."""
    get_user_model().objects.get().user_permissions.add(Permission.objects.get(codename=codename))
    return client


def test_the_chart_counts_attempts_of_the_period_only(staff):
    rollup(minute(58), span="M", count=1)  # not 59: a minute may begin before the page is made
    rollup(minute(60), span="M", count=10)

    assert legend(page(staff("view_task")))[0] == "completed 1"
