"""The pages of task names: figures from the roll-ups, failures by error group, latest tasks, options and schedules."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import Gather, RetryPolicy, Unique, task
from horsies_django.core.histogram import bucket_of
from horsies_django.models import ErrorGroup, Rollup, Schedule, Task
from horsies_django.models.operator_actions import ENGINE_TASK_PREFIX
from horsies_django.ops.metrics import tasks as metrics_of_tasks
from horsies_django.ops.metrics.history import PERIODS
from horsies_django.ops.task_options import options_in_force
from tests.admin.client import log_in
from tests.jobs import tasks

pytestmark = pytest.mark.django_db

NAME = tasks.add.module_path


@task(
    queue_name="emails",
    priority=5,
    max_attempts=4,
    backoff=60,
    timeout=90,
    atomic=True,
    unique=Unique(by=("user",), until="success", on_conflict="raise"),
    rate_limit="100/m",
    max_concurrency=2,
    concurrency_key="user-{user}",
    sensitive={"token"},
    retention={"completed": "1d", "failed": None},
    exception_mapper={LookupError: "LOST"},
)
def every_option(user: int, token: str) -> None: ...


@task(gather=Gather("user-{user}", max_size=50, max_delay=60, quiet=5))
def grouped(items: list) -> None: ...


@task(retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["LOST"]))
async def coroutine() -> None: ...


def url_of(name, query=""):
    return reverse("admin:horsies_django_task_name", args=[name]) + query


def text_of(client, url):
    response = client.get(url)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


def rollup(ago=0, span="H", count=1, outcome="COMPLETED", **columns):
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=ago)
    values = {"queue_name": "default", "task_name": NAME, "runs": {"20": count}, "waits": {"0": count}} | columns
    return Rollup.objects.create(span=span, start=start, count=count, outcome=outcome, **values)


@pytest.fixture
def group():
    now = datetime.now(UTC)
    return ErrorGroup.objects.create(
        fingerprint="abc123abc123",
        exception_class="shop.errors.Refused",
        error_code="UNHANDLED_EXCEPTION",
        location="shop.tasks.charge",
        first_seen_at=now,
        last_seen_at=now,
        last_attempt_id=1,
    )


@pytest.mark.slow
def test_the_page_of_a_name_links_its_errors_and_what_of_it_runs_now(admin_client):
    Task.objects.create(task_name=NAME, status="RUNNING", claim=1, attempt=1, claimed_by_worker_id="w")
    Task.objects.create(task_name="another", status="RUNNING", claim=1, attempt=1, claimed_by_worker_id="w")

    html = admin_client.get(url_of(NAME)).content.decode()

    assert f'href="/admin/horsies_django/task/?state=active&amp;task_name={NAME}">Running now: 1<' in html
    assert f'href="/admin/horsies_django/errorgroup/?task={NAME}&amp;period=24h"' in html
    names = reverse("admin:horsies_django_task_names")
    for page in ("task", "overview"):
        listed = admin_client.get(reverse(f"admin:horsies_django_{page}_changelist")).content.decode()
        assert listed.count(f'href="{names}">Tasks by name<') == 1
    errors = admin_client.get("/admin/horsies_django/errorgroup/", {"task": NAME}).content.decode()
    assert f'href="{url_of(NAME)}">Page of this task<' in errors


@pytest.mark.slow
def test_the_page_counts_the_attempts_of_its_name_in_the_chosen_period(admin_client, group):
    rollup(count=90, run_seconds=90)
    rollup(count=6, outcome="FAILED", error_code="UNHANDLED_EXCEPTION", fingerprint=group.pk)
    rollup(count=4, outcome="FAILED", will_retry=True, error_code="UNHANDLED_EXCEPTION", fingerprint=group.pk)
    rollup(count=2, outcome="WORKER_FAILURE", error_code="WORKER_CRASHED")  # beyond the limits of the groups
    rollup(ago=30, count=1_000)
    rollup(count=7, task_name="another")

    shown = text_of(admin_client, url_of(NAME))

    assert "Attempts 102 " in shown
    assert "Failed or retried 11.8 %" in shown
    for words in ("completed 90 ", "retried 4 ", "failed 8 "):
        assert words in shown
    assert re.search(r"Refused shop\.errors in shop\.tasks\.charge 10 4 .* Without a group older, .* 2 0 ", shown)
    assert "Attempts 1,102 " in text_of(admin_client, url_of(NAME, "?period=7d"))
    assert "Attempts 102 " in text_of(admin_client, url_of(NAME, "?period=nonsense"))
    assert "Attempts 0 " in text_of(admin_client, url_of(NAME, "?period=1h"))


def test_the_page_lists_the_latest_tasks_of_its_name(admin_client):
    tasks.noop.send()
    handles = [tasks.add.send(number, b=2) for number in range(12)]

    response = admin_client.get(url_of(NAME))

    listed = re.findall(r"horsies_django/task/([0-9a-f-]{36})/change/", response.content.decode())
    assert listed == [str(handle.id) for handle in reversed(handles)][:10]
    assert "11, b=2" in response.content.decode().replace("&quot;", '"')


def test_the_page_lists_the_schedules_of_its_name_to_users_who_may_view_schedules(client):
    Schedule.objects.create(name="nightly", task_name=NAME, timing="cron:0 3 * * *")
    Schedule.objects.create(name="of another", task_name=tasks.noop.module_path, timing="cron:0 3 * * *")

    shown = text_of(log_in(client, "view_task", "view_schedule"), url_of(NAME))
    assert "nightly" in shown
    assert "of another" not in shown
    assert "nightly" not in text_of(log_in(client, "view_task"), url_of(NAME))


def test_the_options_in_force_include_the_defaults_of_the_backend():
    found = dict(options_in_force(every_option.task_name))

    assert found["Function"].startswith(f"{__name__}.every_option (")
    assert (found["Queue"], found["Priority"], found["Time limit"]) == ("emails", "5", "1 min 30 s")
    assert found["Attempts"].startswith("Up to 4 attempts.")
    assert "60 s" in found["Attempts"]
    assert found["Unique"] == "key: user; if it is taken: raise; until: success"
    assert found["Limits"] == "2 at a time, rate 100/m, for each user-{user}"
    assert found["Retention"] == "Completed: 1 d 0 h; Failed: forever"
    assert (found["Error codes"], found["Hidden values"]) == ("LookupError → LOST", "token")
    assert found["Transaction"] == "one for each attempt and its result"


@pytest.mark.parametrize(
    ("name", "label", "value"),
    [
        (grouped.task_name, "Grouping", "key: user-{user}, at most 50 calls, due 1 min 0 s after the first call, "
                                        "or 5.0 s after the last"),
        (coroutine.task_name, "Runs as", "coroutine"),
        (tasks.add.task_name, "Time limit", "none"),
    ],
)  # fmt: skip
def test_each_kind_of_option_is_put_in_words(name, label, value):
    assert dict(options_in_force(name))[label] == value


def test_a_name_that_this_process_does_not_know_has_a_page_too(admin_client):
    rollup(task_name="gone.tasks.<b>old</b>", count=3)
    Task.objects.create(task_name="gone.tasks.<b>old</b>")

    html = admin_client.get(url_of("gone.tasks.<b>old</b>")).content.decode()

    assert "<b>old</b>" not in html
    assert "This process knows no task of this name" in html
    assert options_in_force("gone") is None


def test_a_worker_on_the_page_leads_to_the_list_of_its_tasks(admin_client):
    Task.objects.create(task_name=NAME, status="RUNNING", claim=1, attempt=1, claimed_by_worker_id="host-1")

    html = admin_client.get(url_of(NAME)).content.decode()

    assert f'<a href="{reverse("admin:horsies_django_task_changelist")}?worker=host-1">' in html


def test_the_list_has_the_names_that_ran_longest_first_then_other_registered_ones(admin_client):
    rollup(count=5, run_seconds=10.0)
    rollup(count=2, run_seconds=500.0, task_name="slow.tasks.report", outcome="FAILED")
    rollup(ago=30, task_name="not.today")

    shown = text_of(admin_client, reverse("admin:horsies_django_task_names"))

    assert re.search(
        r"slow\.tasks\.report 2 2 ≈ 861 ms 8 min .*tests\.jobs\.tasks\.add 5 0 ≈ 861 ms 10 s .*Other registered tasks",
        shown,
    )
    assert "not.today" not in shown
    assert tasks.noop.module_path in shown.split("Other registered tasks")[1]
    assert f" {ENGINE_TASK_PREFIX}" not in shown.split("Other registered tasks")[1]


@pytest.mark.parametrize("url", ["/admin/horsies_django/task/names/", "/admin/horsies_django/task/names/some.task/"])
def test_only_users_who_may_view_tasks_see_the_pages(client, url):
    assert log_in(client, "view_queue").get(url).status_code == 403
    assert log_in(client, "view_task").get(url).status_code == 200


@pytest.mark.parametrize(
    "period", [period if period in ("1h", "7d") else pytest.param(period, marks=pytest.mark.slow) for period in PERIODS]
)
def test_the_number_of_statements_does_not_grow_with_the_history(admin_client, group, period):
    def statements():
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(url_of(NAME, f"?period={period}")).status_code == 200
        return len(queries)

    span = "M" if period == "1h" else "H"
    rollup(outcome="FAILED", fingerprint=group.pk, span=span)
    tasks.add.send(1)
    Schedule.objects.create(name="nightly", task_name=NAME, timing="cron:0 3 * * *")
    few = statements()
    for number in range(20):
        rollup(queue_name=f"q{number}", outcome="FAILED", error_code=f"E{number}", span="M" if period == "1h" else "H")
        tasks.add.send(number)
    assert statements() == few
    assert few <= 14


@pytest.fixture
def three_names(db):
    rollup(task_name="long", count=4, run_seconds=400.0, runs={"36": 4})
    rollup(task_name="often", count=200, run_seconds=100.0, runs={"12": 190, "34": 10})
    rollup(task_name="often", count=1, run_seconds=0.1, runs={"34": 1}, outcome="FAILED", error_code="A")
    rollup(task_name="often", count=1, run_seconds=0.1, runs={"12": 1}, outcome="FAILED", error_code="A", ago=2)
    rollup(task_name="fails", count=3, run_seconds=30.0, runs={"38": 3}, outcome="FAILED", error_code="B")
    rollup(task_name="fails", ago=30, runs={"5": 1_000})


@pytest.mark.usefixtures("three_names")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["long", "often", "fails"]),
        ("?sort=attempts", ["often", "long", "fails"]),
        ("?sort=failed", ["fails", "often", "long"]),
        ("?sort=p95", ["fails", "long", "often"]),
        ("?sort=nonsense", ["long", "often", "fails"]),
    ],
)
def test_the_list_of_names_is_sorted_by_attempts_failures_p95_or_total_run_time(admin_client, query, expected):
    html = admin_client.get(reverse("admin:horsies_django_task_names") + query).content.decode()

    assert re.findall(r">(long|often|fails)</a></th>", html) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("three_names")
def test_the_page_of_a_name_has_the_p95_of_the_list(admin_client):
    html = admin_client.get(reverse("admin:horsies_django_task_names")).content.decode()

    for name, p95 in {"long": "≈ 4 min", "often": "≈ 110 s", "fails": "≈ 7 min"}.items():
        row = re.search(rf">{name}</a></th>(.*?)</tr>", html)[1]
        assert p95 in row
        assert p95 in text_of(admin_client, url_of(name))


def test_the_p95_in_the_list_of_names_is_of_the_newest_roll_ups(admin_client, monkeypatch):
    monkeypatch.setattr(metrics_of_tasks, "MAX_HISTOGRAMS", 2)
    rollup(task_name="often", count=9, run_seconds=900.0, runs={"38": 9}, ago=3)
    for ago in (1, 2):
        rollup(task_name="often", count=1, run_seconds=1.0, runs={str(bucket_of(1)): 1}, ago=ago)
    html = admin_client.get(reverse("admin:horsies_django_task_names")).content.decode()

    row = re.search(r">often</a></th>(.*?)</tr>", html)[1]
    assert ">11<" in row
    assert "≈ 861 ms" in row


def test_the_list_of_names_is_bounded_and_by_p95_has_the_slowest(admin_client, monkeypatch):
    monkeypatch.setattr(metrics_of_tasks, "MAX_NAMES", 2)
    for name, seconds in {"slow": 100, "slower": 200, "quick": 1}.items():
        rollup(task_name=name, count=1, run_seconds=seconds, runs={str(bucket_of(seconds)): 1})
    rollup(task_name="often", count=1_000, run_seconds=1_000.0, runs={"20": 1_000})
    url = reverse("admin:horsies_django_task_names") + "?sort=p95"

    with CaptureQueriesContext(connection) as queries:
        html = admin_client.get(url).content.decode()

    assert re.findall(r">(slow|slower|quick|often)</a></th>", html) == ["slower", "slow"]
    assert len([query for query in queries if "horsies_rollups" in query["sql"] and "FROM" in query["sql"]]) <= 3
