"""Refreshes of live pages: status 304 if the parts that refresh show the same, else the whole page with a new tag."""

import re

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from horsies_django import Workflow as Definition
from horsies_django.db.expressions import NowPlus
from horsies_django.models import (
    ErrorGroup,
    Heartbeat,
    Queue,
    Rollup,
    Schedule,
    Task,
    Worker,
    Workflow,
    WorkflowTask,
)
from horsies_django.ops.metrics.history import rollup_clock
from horsies_django.testing import travel
from tests.admin.client import log_in
from tests.admin.factories import LATER, LONG_AGO
from tests.jobs import tasks

pytestmark = pytest.mark.django_db

OVERVIEW = "/admin/horsies_django/overview/"
RUNNING = "/admin/horsies_django/task/?state=running"


@pytest.fixture
def operator(admin_user):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    return client


def run(seconds=5):
    task = Task.objects.create(task_name="shop.ship", status="RUNNING", claim=1, attempt=1, claimed_by_worker_id="w")
    Task.objects.filter(pk=task.pk).update(started_at=NowPlus(-seconds), claimed_at=NowPlus(-seconds))
    return task


@pytest.mark.slow
def test_a_refresh_of_the_running_tab_has_the_counts_of_the_other_tabs(operator):
    run()
    tag = operator.get(RUNNING).headers["ETag"]
    assert refresh(operator, RUNNING, tag).status_code == 304

    Task.objects.create(task_name="shop.due", enqueued_at=LONG_AGO)

    assert refresh(operator, RUNNING, tag).status_code == 200


def refresh(client, url, tag):
    return client.get(url, headers={"If-None-Match": tag})


def live_pages():
    """Create rows, and return the URL of a page of each kind that refreshes itself."""
    run()
    scheduled = Task.objects.create(task_name="shop.later", enqueued_at=LATER, deferred=True)
    Task.objects.create(task_name="shop.due", queue_name="emails", enqueued_at=LONG_AGO)
    Worker.objects.register("w", "w", "host", 1)
    queue = Queue.objects.create(name="emails")
    schedule = Schedule(name="nightly", task_name=tasks.noop.module_path, timing="every:86400")
    schedule.save()
    group = ErrorGroup.objects.create(
        fingerprint="0123456789ab", error_code="DOWN", first_seen_at=LONG_AGO, last_seen_at=LONG_AGO, last_attempt_id=1
    )
    now = timezone.now()
    for span, start in (("M", now), ("H", now.replace(minute=0))):
        start = start.replace(second=0, microsecond=0)
        counted = {"outcome": "FAILED", "fingerprint": group.pk, "error_code": "DOWN", "count": 2}
        Rollup.objects.create(span=span, start=start, **counted)
    pages = {
        "queue": queue.pk,
        "worker": "w",
        "schedule": schedule.pk,
        "task": scheduled.pk,
        "errorgroup": group.pk,
    }
    listed = ("queue", "worker", "schedule", "errorgroup")
    lists = [reverse(f"admin:horsies_django_{name}_changelist") for name in listed]
    rows = [reverse(f"admin:horsies_django_{name}_change", args=[key]) for name, key in pages.items()]
    return [OVERVIEW, RUNNING, *lists, *rows]


def twice_in_a_minute(operator, url):
    """Return a page and its refresh in the same minute: the next one moves the charts."""
    while True:
        minute = rollup_clock("default").minute
        first = operator.get(url)
        second = refresh(operator, url, first["ETag"])
        if rollup_clock("default").minute == minute:
            return first, second


@pytest.mark.slow
def test_a_refresh_of_any_live_page_without_a_change_is_answered_with_304(operator):
    for url in live_pages():
        first, second = twice_in_a_minute(operator, url)

        assert (url, first.status_code, second.status_code) == (url, 200, 304)
        assert second.content == b""
        assert second["ETag"] == first["ETag"]
        for response in (first, second):
            assert "Cookie" in response["Vary"], url
            assert {"private", "no-cache"} <= set(re.split(", *", response["Cache-Control"])), url


@pytest.mark.slow
def test_a_refresh_after_a_change_gets_the_page_and_a_new_tag(operator):
    run()
    for url in (OVERVIEW, RUNNING):
        tag = operator.get(url)["ETag"]
        more = Task.objects.create(task_name="shop.more", status="RUNNING", claim=1, claimed_by_worker_id="w2")
        Task.objects.filter(pk=more.pk).update(claimed_at=NowPlus(0), started_at=NowPlus(0))

        second = refresh(operator, url, tag)

        assert second.status_code == 200
        assert second["ETag"] != tag
        assert refresh(operator, url, second["ETag"]).status_code == 304


@pytest.mark.slow
def test_a_change_of_progress_is_a_change(operator):
    task = run()
    tag = operator.get(RUNNING)["ETag"]

    Task.objects.filter(pk=task.pk).update(progress={"done": 1, "total": 2})

    assert refresh(operator, RUNNING, tag).status_code == 200


@pytest.mark.slow
def test_time_that_passes_is_no_change_until_a_run_becomes_slow(operator):
    run()
    Task.objects.update(timeout=60.0)
    tag = operator.get(RUNNING)["ETag"]

    with travel(seconds=20):
        assert refresh(operator, RUNNING, tag).status_code == 304
    with travel(seconds=50):
        near = refresh(operator, RUNNING, tag)
    assert near.status_code == 200
    assert "near its time limit" in near.content.decode()


def test_an_unchanged_running_task_is_answered_with_304(operator):
    task = run(1_000)
    Task.objects.filter(pk=task.pk).update(sent_at=NowPlus(-2_000), enqueued_at=NowPlus(-2_000))
    Heartbeat.objects.create(task=task, role="runner", sender_id="w", hostname="h", pid=1)
    url = reverse("admin:horsies_django_task_change", args=[task.pk])
    first = operator.get(url)

    with travel(seconds=2):
        assert refresh(operator, url, first["ETag"]).status_code == 304
    html = first.content.decode()
    for part in ("field-page_run", "horsies-beats-table"):
        assert "data-horsies-age" in html.partition(part)[2][:2_000], part


@pytest.mark.slow
def test_an_unchanged_running_workflow_is_answered_with_304(operator):
    Definition("order", [tasks.noop.node(node_id=name)() for name in ("pack", "ship", "mail")]).start()
    Workflow.objects.update(sent_at=NowPlus(-1_000), started_at=NowPlus(-1_000))
    WorkflowTask.objects.filter(node_id="pack").update(status="RUNNING", started_at=NowPlus(-1_000))
    pack = WorkflowTask.objects.get(node_id="pack")
    Task.objects.filter(pk=pack.task_id).update(status="RUNNING", claim=1, attempt=1, started_at=NowPlus(-400))
    url = reverse("admin:horsies_django_workflow_change", args=[pack.workflow_id]) + "?node=0"
    first = operator.get(url)

    with travel(seconds=2):
        assert refresh(operator, url, first["ETag"]).status_code == 304
    WorkflowTask.objects.filter(node_id="ship").update(status="RUNNING", started_at=NowPlus(-1))
    assert refresh(operator, url, first["ETag"]).status_code == 200


def test_a_page_with_forms_in_its_live_parts_has_the_same_tag_each_time(operator):
    """The CSRF token in a form differs in each response."""
    task = Task.objects.create(task_name="shop.later", enqueued_at=LATER, deferred=True)
    url = reverse("admin:horsies_django_task_change", args=[task.pk])
    first = operator.get(url)
    assert "csrfmiddlewaretoken" in first.content.decode().partition('id="horsies-buttons"')[2]

    second = operator.get(url)

    assert first.content != second.content
    assert first["ETag"] == second["ETag"]


@pytest.mark.slow
def test_messages_do_not_change_the_tag_of_the_next_refresh(operator):
    task = run()
    tag = operator.get(RUNNING)["ETag"]
    url = reverse("admin:horsies_django_task_do", args=[task.pk, "retry"])
    form = operator.get(url)
    operator.post(url, {"csrfmiddlewaretoken": form.context["csrf_token"]})  # skips a running task, and says so

    assert "1 was skipped" in operator.get(RUNNING).content.decode()
    assert operator.get(RUNNING)["ETag"] == tag


def test_users_with_other_permissions_get_other_tags(client):
    Worker.objects.register("w", "w", "host", 1)
    tag = log_in(client, "view_task").get(OVERVIEW)["ETag"]

    response = refresh(log_in(client, "view_task", "view_worker"), OVERVIEW, tag)

    assert response.status_code == 200
    assert "host" in response.content.decode()


def test_a_user_without_permission_gets_no_304(client):
    tag = log_in(client, "view_task").get(OVERVIEW)["ETag"]

    assert refresh(log_in(client, "view_worker"), OVERVIEW, tag).status_code == 403


def test_a_page_that_no_longer_refreshes_has_no_tag(operator):
    task = Task.objects.create(task_name="shop.done")
    url = reverse("admin:horsies_django_task_change", args=[task.pk])
    tag = operator.get(url)["ETag"]
    Task.objects.filter(pk=task.pk).update(status="COMPLETED", completed_at=NowPlus(0))

    response = refresh(operator, url, tag)

    assert response.status_code == 200
    assert "ETag" not in response


def test_ages_name_the_time_they_count_from(operator):
    task = run(3_700)
    task.refresh_from_db()

    html = operator.get(RUNNING).content.decode()

    assert f'<time datetime="{task.started_at.isoformat()}"' in html
    age = re.search(r'data-horsies-form="full" data-horsies-age="([\d.]+)">1 h 1 min</time>', html)
    assert age is not None
    assert 3_700 <= float(age[1]) < 3_760
