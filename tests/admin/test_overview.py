"""The overview page: its permissions, its contents with and without rows, its queries, its charts as text."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import Workflow
from horsies_django.admin import register
from horsies_django.models import ErrorGroup, Lease, Overview, Queue, Rollup, Task, Worker
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/horsies_django/overview/"


@pytest.fixture
def staff(client):
    """Log a staff member with these permissions in."""

    def log_in(*codenames):
        user = get_user_model().objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client.force_login(user)
        return client

    return log_in


def page(client, **query):
    response = client.get(PAGE, query)
    assert response.status_code == 200
    return response.content.decode()


def text_of(html):
    """Return the text of a page, with a space for each tag."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def rollup(start=None, span="H", count=3, **columns):
    start = start or datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    defaults = {"queue_name": "default", "task_name": "shop.ship", "outcome": "COMPLETED", "runs": {"20": count}}
    return Rollup.objects.create(span=span, start=start, count=count, **defaults | columns)


def minute(ago=0):
    return datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=ago)


def test_the_index_links_the_overview_for_users_who_may_view_tasks(staff):
    assert f'href="{PAGE}"' in staff("view_task").get("/admin/").content.decode()


def test_the_index_lists_the_pages_by_how_often_they_are_needed_and_leaves_out_heartbeats(admin_client):
    html = admin_client.get("/admin/horsies_django/").content.decode()

    links = re.findall(r'<a href="/admin/horsies_django/([\w?=/]+)"', html[html.index('id="content"') :])
    assert [link for link in dict.fromkeys(links) if not link.endswith("add/")] == [
        "overview/", "task/", "task/?state=running", "errorgroup/", "workflow/", "schedule/", "queue/", "limit/",
        "worker/",
    ]  # fmt: skip
    assert admin_client.get("/admin/horsies_django/heartbeat/").status_code == 200


def test_users_who_may_not_view_tasks_may_not_view_the_overview(staff, client):
    assert client.get(PAGE).status_code == 302
    assert staff("view_worker").get(PAGE).status_code == 403
    assert f'href="{PAGE}"' not in client.get("/admin/").content.decode()


def test_the_overview_has_no_rows_to_open_add_or_delete(staff):
    client, handle = staff("view_task", "add_task", "change_task", "delete_task"), tasks.noop.send()

    for address in ("add/", f"{handle.id}/change/", f"{handle.id}/delete/", f"{handle.id}/"):
        assert client.get(PAGE + address).status_code == 404
    assert client.post(PAGE, {"action": "delete_selected"}).status_code in (200, 403, 405)
    assert handle.status() == "PENDING"


def test_an_empty_overview_says_what_to_do_next(staff):
    html = page(staff("view_task", "view_worker", "view_workflow"))

    assert "No tasks yet" in html
    assert "python manage.py horsies_worker" in html
    assert "No failures counted." in html


@pytest.mark.slow
def test_each_state_has_a_tile_that_links_to_its_list(staff, drain):
    tasks.fail.send()
    drain()
    tasks.noop.send()

    html = page(staff("view_task"))

    tiles = dict(
        re.findall(r'<a href="/admin/horsies_django/task/\?kind=all&amp;([^"]*)">.*?<strong>(.*?)</strong>', html)
    )
    assert tiles == {
        "state=due": "1",
        "state=blocked": "0",
        "state=active": "0",
        "state=scheduled": "0",
        "state=retrying": "0",
        "state=awaiting": "0",
        "trouble=overdue": "0",
        "state=completed": "0",
        "state=failed": "1",
        "state=cancelled": "0",
        "state=expired": "0",
    }
    assert "No worker is online" in html


#: The texts that each permission adds to the page.
SECTIONS = {
    "view_queue": ("latency", "Paused queues with due tasks: emails."),
    "view_worker": ("host7",),
    "view_workflow": ("Workflows in progress", 'max="1" aria-label="progress"></progress> 0/1'),
}


@pytest.mark.slow
@pytest.mark.parametrize("permission", [None, *SECTIONS])
def test_queues_workers_and_workflows_need_their_own_view_permission(staff, permission):
    Worker.objects.register("w1", "web", "host7", 1)
    Workflow("import", [tasks.noop.node()()]).start()
    Queue.objects.create(name="emails", paused=True)
    tasks.on_emails.send()

    html = page(staff("view_task", *([permission] if permission else [])))

    assert "What fails most" in html
    shown = {name for name, texts in SECTIONS.items() for text in texts if text in html}
    assert shown == ({permission} if permission else set())
    assert bool(re.search(r"\bemails\b", html)) == (permission == "view_queue")


@pytest.mark.slow
def test_an_unserved_queue_is_named_only_to_users_who_may_view_queues(staff):
    Worker.objects.register("w1", "web", "host7", 1, queues=["other"])
    tasks.on_emails.send()

    assert not re.search(r"\bemails\b", page(client := staff("view_task", "view_worker"), by="queue", queue="emails"))
    get_user_model().objects.get().user_permissions.add(Permission.objects.get(codename="view_queue"))
    warning = "No worker serves these queues, or all of their workers are stopping, quiet or stand still: emails."
    assert warning in page(client)


@pytest.mark.slow
def test_the_overview_shows_queues_failures_and_times(staff):
    rollup(waits={"24": 3}, count=3)
    rollup(minute(), span="M", count=3)
    rollup(outcome="FAILED", error_code="SMTP_DOWN", will_retry=True, count=7, fingerprint="a" * 12)
    rollup(outcome="WORKER_FAILURE", error_code="<b>", count=2)
    ErrorGroup.objects.create(
        fingerprint="a" * 12, error_code="SMTP_DOWN", location="<script>alert(1)</script>", last_attempt_id=1,
        first_seen_at=minute(), last_seen_at=minute(),
    )  # fmt: skip
    Queue.objects.create(name="emails", paused=True)
    tasks.on_emails.send()
    Lease.objects.create(name="reaper:default")

    html = page(staff("view_task", "view_worker", "view_queue"), period="24h")

    text = text_of(html)
    assert "What fails most , last 24 hours" in text
    assert "SMTP_DOWN in &lt;script&gt;alert(1)&lt;/script&gt; 7 7 " in text
    assert re.search(r"Without a group [^0-9]* 2 0", text)
    assert "<script>alert" not in html
    assert "emails paused 1" in text
    assert "Paused queues with due tasks: emails." in text
    assert "The reaper has not run recently" not in text
    assert f'href="/admin/horsies_django/errorgroup/{"a" * 12}/change/?period=24h"' in html


@pytest.mark.slow
def test_links_to_workers_work_for_names_with_underscores(staff):
    Worker.objects.register("gpu_23-1", "gpu_23", "host", 1)
    client = staff("view_task", "view_worker")

    address = next(address for address in re.findall(r'href="([^"]+)"', page(client)) if "/worker/gpu" in address)

    assert client.get(address).status_code == 200


def test_the_overview_reports_a_late_reaper(staff):
    tasks.noop.send()
    Lease.objects.create(name="reaper:default", renewed_at=datetime.now(UTC) - timedelta(hours=1))

    assert "The reaper has not run recently" in page(staff("view_task"))


@pytest.mark.slow
def test_a_chart_has_a_text_description_and_a_table(staff):
    start = minute(5)
    rollup(start, span="M", count=1204)
    rollup(start, span="M", count=3, outcome="FAILED")
    rollup(minute(2), span="M", count=10, outcome="FAILED", will_retry=True)

    html = page(staff("view_task"))

    assert re.search(
        r'role="group" aria-label="Attempts, last hour, by minute: 1,204 completed, 3 failed, 10 retried"',
        html,
    )
    assert re.search(r"\d\d:\d\d 1,204 3 0 ", text_of(html))
    assert html.count('<svg class="horsies-chart"') == 1


class _Inline(HTMLParser):
    found: list[str]

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        self.found += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)


def test_the_overview_works_under_a_strict_content_security_policy(staff):
    rollup(minute(1), span="M")
    html = page(staff("view_task", "view_worker", "view_workflow"))

    parser = _Inline()
    parser.found = []
    parser.feed(html[html.index('id="content"') :])
    assert parser.found == []
    assert 'src="/static/horsies_django/live.js"' in html
    assert 'id="horsies-overview" data-horsies-live' in html
    assert "data-horsies-live-controls" in html


@pytest.mark.slow
def test_the_overview_takes_at_most_15_queries_with_many_rows(staff):
    latest = minute()
    for number in range(9):
        Queue.objects.create(name=f"q{number}")
        Worker.objects.register(f"w{number}", "", "h", number)
        Workflow("import", [tasks.noop.node()()]).start()
        rollup(latest - timedelta(minutes=number), span="M")
        fingerprint = f"{number:012x}"
        rollup(latest, span="M", outcome="FAILED", fingerprint=fingerprint)
        ErrorGroup.objects.create(
            fingerprint=fingerprint, error_code="X", first_seen_at=latest, last_seen_at=latest, last_attempt_id=1
        )
    Task.objects.bulk_create([Task(task_name="x", queue_name=f"q{number % 9}") for number in range(200)])
    client = staff("view_task", "view_worker", "view_workflow", "view_queue", "view_schedule")

    with CaptureQueriesContext(connection) as captured:
        page(client)

    statements = [
        query["sql"] for query in captured if not query["sql"].startswith(("BEGIN", "COMMIT", "SAVE", "RELEASE"))
    ]
    assert len(statements) <= 15, statements


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "UTC"])
def test_chart_times_are_in_the_configured_time_zone(staff, settings, zone):
    settings.TIME_ZONE = zone
    rollup(datetime.now(UTC).replace(minute=0, second=0, microsecond=0))

    html = page(staff("view_task"), period="24h")
    shown = re.search(r"<title>\w+ \d\d:(\d\d): 3 completed</title>", html)

    assert shown[1] == ("45" if zone == "Asia/Kathmandu" else "00")


def test_the_overview_works_on_any_site(rf):
    site = AdminSite("other")
    register(site)
    request = rf.get("/")
    request.user = get_user_model().objects.create_superuser("root")

    response = site._registry[Overview].changelist_view(request)

    assert response.status_code == 200
    assert response.context_data["title"] == "Overview"
