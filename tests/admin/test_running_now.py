"""The tabs of tasks that workers hold: their order, their marks, their filters and their permissions."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from horsies_django import TaskStatus
from horsies_django.db.expressions import NowPlus
from horsies_django.db.now import Now
from horsies_django.models import Rollup, Task, Worker
from horsies_django.ops.keyset.ordered import SIZES
from tests.jobs import tasks

pytestmark = pytest.mark.django_db

LIST = "/admin/horsies_django/task/"
RUNNING = {"state": "running"}


def held(seconds=5.0, status="RUNNING", worker="w-1", **columns):
    """Create a task that a worker has held for some seconds."""
    began = {"claimed_at": NowPlus(-seconds)} | ({"started_at": NowPlus(-seconds)} if status == "RUNNING" else {})
    defaults = {"task_name": tasks.noop.module_path, "attempt": 1, "claim": 1, "claimed_by_worker_id": worker}
    row = Task.objects.create(status=status, **defaults | columns)
    Task.objects.filter(pk=row.pk).update(**began)
    return row


def usual(seconds_bucket, name=tasks.noop.module_path, **columns):
    """Have a task usually take as long as this bucket: 20 is 860 ms, 26 is 6.9 s."""
    histogram = {str(seconds_bucket): 100}
    defaults = {"span": "H", "start": Now(), "queue_name": "default", "outcome": "COMPLETED", "count": 100}
    Rollup.objects.create(task_name=name, runs=histogram, **defaults | columns)


def page(client, **query):
    """Return the HTML of a tab."""
    response = client.get(LIST, RUNNING | query)
    assert response.status_code == 200
    return response.content.decode()


def rows(client, **query):
    """Return the text of each listed task by its id, in the order of the page."""
    body = page(client, **query).partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r'<tr>.*?name="_selected_action" value="([^"]+)"(.*?)</tr>', body, re.DOTALL)
    return {key: re.sub(r"\s+", " ", strip_tags(html)) for key, html in found}


@pytest.mark.slow
def test_running_tasks_are_listed_the_longest_running_first(staff):
    claimed = held(900, "CLAIMED")
    short, long = held(5), held(3_700)
    tasks.noop.send()
    Task.objects.create(task_name="jobs.done", status="COMPLETED", completed_at=Now())
    client = staff("view_task", "retry_task")

    assert list(rows(client)) == [str(task.pk) for task in (long, short)]
    assert set(rows(client, state="active")) == {str(task.pk) for task in (long, short, claimed)}
    assert list(rows(client, state="claimed")) == [str(claimed.pk)]


@pytest.mark.slow
def test_the_tabs_of_held_tasks_are_refreshed_and_others_are_not(staff):
    held(5)
    client = staff("view_task")

    for state in ("running", "claimed", "active"):
        html = page(client, state=state)
        assert '<div id="horsies-results" data-horsies-live>' in html
        assert '<nav class="horsies-tabs" id="horsies-tabs" data-horsies-live ' in html
    assert "data-horsies-live>" not in page(client, state="completed")


def test_a_row_shows_arguments_attempt_progress_and_run_time(staff):
    task = held(
        3_700, args=["anna"], attempt=2, max_retries=3, progress={"done": 3, "total": 9, "message": "page 3"},
        queue_name="emails", task_name=tasks.echo.module_path,
    )  # fmt: skip

    shown = rows(staff("view_task", "retry_task"))[str(task.pk)]

    for words in ("echo", "anna", "2/4", "3/9", "page 3", "emails", "w-1", "1 h 1 min"):
        assert words in shown, words


def test_a_run_is_marked_once_it_takes_longer_than_95_percent_of_the_runs(staff):
    usual(26)
    slow, fast = held(60), held(2)
    other = held(60, task_name=tasks.fail.module_path)

    shown = rows(staff("view_task", "retry_task"))

    assert "p95 ≈ 6.9 s" in shown[str(slow.pk)] or "p95 ≈ 6.8 s" in shown[str(slow.pk)]
    assert {key for key, words in shown.items() if "over p95" in words} == {str(slow.pk)}
    assert "p95" in shown[str(fast.pk)]
    assert "p95" not in shown[str(other.pk)]


def test_failed_and_old_runs_are_not_usual(staff):
    usual(2, outcome="FAILED")
    usual(2, start=NowPlus(-30 * 3_600))
    task = held(60)

    assert "p95" not in rows(staff("view_task", "retry_task"))[str(task.pk)]


@pytest.mark.parametrize(("seconds", "mark"), [(70, None), (85, "near its time limit of 100 s"), (105, "over its")])
def test_a_run_near_its_time_limit_is_marked(staff, seconds, mark):
    task = held(seconds, timeout=100.0)

    shown = rows(staff("view_task", "retry_task"))[str(task.pk)]

    assert ("time limit" in shown) == (mark is not None)
    assert mark is None or mark in shown


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"queue_name": "emails"}, {"emails"}),
        ({"worker": "w-2"}, {"other worker"}),
        ({"task_name": "tests.jobs.tasks.fail"}, {"other task"}),
        ({"queue_name": "emails", "worker": "w-2"}, set()),
        ({"queue_name": "no\0such"}, set()),
        ({}, {"emails", "other worker", "other task"}),
    ],
)
def test_filters_narrow_the_list(staff, query, expected):
    made = {
        "emails": held(queue_name="emails"),
        "other worker": held(worker="w-2"),
        "other task": held(task_name=tasks.fail.module_path),
    }

    shown = rows(staff("view_task", "retry_task"), **query)

    assert {name for name, task in made.items() if str(task.pk) in shown} == expected


@pytest.mark.slow
def test_the_page_takes_as_many_statements_for_20_tasks_as_for_one(staff):
    client = staff("view_task", "view_worker", "cancel_task")

    def statements():
        with CaptureQueriesContext(connection) as captured:
            page(client)
        return len(captured)

    held()
    one = statements()
    for number in range(20):
        held(worker=f"w-{number}", queue_name=f"q{number}", task_name=f"jobs.t{number}")

    assert statements() == one


def test_an_index_has_the_held_tasks_of_a_worker(staff):
    held()
    with CaptureQueriesContext(connection) as captured:
        page(staff("view_task"), worker="w-1")
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    (reading,) = [query["sql"] for query in captured if f"LIMIT {SIZES[0]}" in query["sql"]]
    is_postgres = connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        # An earlier test may have left statistics of a table with few rows, which a plan scans.
        forget = ("ANALYZE horsies_tasks", "DELETE FROM sqlite_stat1", "ANALYZE sqlite_schema")
        for statement in ("SET LOCAL enable_seqscan = off",) if is_postgres else forget:
            cursor.execute(statement)
        cursor.execute(f"{explain} {reading}".replace("%", "%%"), [])
        plan = "\n".join(map(str, cursor.fetchall()))

    assert "horsies_task_held" in plan


def test_a_silent_worker_is_marked_beside_its_tasks(staff):
    Worker.objects.register("w-1", "w", "host", 1)
    Worker.objects.register("w-2", "w", "host", 1)
    Worker.objects.filter(pk="w-1").update(last_beat_at=NowPlus(-70))
    silent, online = held(), held(worker="w-2")

    shown = rows(staff("view_task", "view_worker", "retry_task"))

    assert re.search(r"not responding \(no heartbeat for \d\d s; expected every 30 s\)", shown[str(silent.pk)])
    assert "heartbeat" not in shown[str(online.pk)]


def test_users_who_may_not_view_workers_see_no_state_of_them(staff):
    Worker.objects.register("w-1", "w", "host", 1)
    Worker.objects.filter(pk="w-1").update(last_beat_at=NowPlus(-70))
    task = held()

    html = page(staff("view_task"))

    assert str(task.pk) in html
    assert "not responding" not in html
    assert "/worker/" not in html


@pytest.mark.slow
@pytest.mark.parametrize("permission", [None, "cancel_task"])
def test_only_users_who_may_cancel_have_a_button_that_asks_first(staff, permission):
    task = held()
    client = staff("view_task", *([permission] if permission else []))
    url = reverse("admin:horsies_django_task_do", args=[task.pk, "cancel_running"])

    html = page(client)

    assert (f'href="{url}"' in html) == (permission is not None)
    assert client.get(url).status_code == (200 if permission else 403)
    task.refresh_from_db()
    assert task.status == TaskStatus.RUNNING
    if permission:
        client.post(url, {"confirmed": "1"})
        task.refresh_from_db()
        assert task.status == TaskStatus.CANCELLED


def test_text_of_tasks_is_escaped(staff):
    held(task_name="<b id=x>", queue_name="<b id=y>", worker="<b id=z>", progress={"done": 1, "message": "<b id=p>"})

    html = page(staff("view_task"))

    assert "&lt;b id=p&gt;" in html
    assert "<b id" not in html


def test_masked_arguments_stay_masked(staff):
    held(kwargs={"password": "hunter2"}, task_name=tasks.echo.module_path)

    assert "hunter2" not in page(staff("view_task"))


@pytest.mark.slow
def test_pages_of_workers_and_queues_link_to_it(staff):
    Worker.objects.register("w-1", "w", "host", 1)
    held(queue_name="emails")
    client = staff("view_task", "view_worker", "view_queue")

    pages = {"worker_change": "w-1", "queue_change": "~emails"}
    for page, key in pages.items():
        html = client.get(reverse(f"admin:horsies_django_{page}", args=[key])).content.decode()
        assert re.search(rf'href="{LIST}\?[^"]*state=active', html)
