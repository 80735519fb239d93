"""Workers in the admin: the list, what each worker runs, and the request to stop one."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task, Worker
from tests.jobs import tasks
from tests.worker.test_stopping import send_hold

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LIST = "/admin/horsies_django/worker/"
OVERVIEW = "/admin/horsies_django/overview/"
RUNNING = "/admin/horsies_django/task/?state=active"


def page(client, worker_id):
    return client.get(reverse("admin:horsies_django_worker_change", args=[worker_id])).content.decode()


def text_of(html):
    return re.sub(r"\s+", " ", strip_tags(html))


def register(name="w-1", **facts):
    Worker.objects.register(name, "w", "host-a", 4711, **{"threads": 8, "async_slots": 100} | facts)


def hold(count, worker_id="w-1"):
    handles = tasks.noop.send_many({} for _ in range(count))
    with transaction.atomic():
        assert len(Task.objects.claim(worker_id, start=count)) == count
    return handles


def test_the_list_shows_host_queues_slots_and_memory_of_each_worker(staff):
    register(queues=["emails"], excluded_queues=["reports"], version="9.8.7", memory=52_428_800)

    shown = text_of(staff("view_worker").get(LIST).content.decode())

    for text in ("host-a", "4711", "online", "0/8", "50.0", "emails, but not reports", "9.8.7"):
        assert text in shown.replace("\xa0", " "), text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("silence", "state"),
    [
        (55, "online"),
        (70, r"not responding \(no heartbeat for \d\d s; expected every 30 s\)"),
        (3_600, r"offline \(no heartbeat for 60 min\)"),
    ],
)
def test_a_worker_that_misses_two_heartbeats_is_marked_before_its_tasks_are_recovered(staff, silence, state):
    register()
    Worker.objects.update(last_beat_at=NowPlus(-silence))
    client = staff("view_worker", "view_task")

    for url in (LIST, reverse("admin:horsies_django_worker_change", args=["w-1"])):
        assert re.search(state, text_of(client.get(url).content.decode())), url
    overview = text_of(client.get(OVERVIEW).content.decode())
    assert bool(re.search(state, overview)) == (silence < 3_600)
    assert ("may be dead" in overview) == (silence == 70)


@pytest.mark.slow
def test_a_worker_that_stands_still_is_shown_with_the_time_for_which_it_has(staff):
    register(stalled_since=NowPlus(-14))
    hold(1)
    client = staff("view_worker", "view_task")

    for url in (LIST, reverse("admin:horsies_django_worker_change", args=["w-1"]), OVERVIEW, RUNNING):
        shown = text_of(client.get(url).content.decode())
        assert re.search(r"stands still \(for 1[4-9] s\)", shown), url
        assert "online (" not in shown

    Worker.objects.update(last_beat_at=NowPlus(-70))
    assert "not responding (no heartbeat for 7" in text_of(client.get(LIST).content.decode())


def test_the_overview_counts_workers_by_their_state(staff):
    for name, silence in {"on": 1, "silent": 70, "off": 3_600, "stalled": 1}.items():
        register(name)
        Worker.objects.filter(pk=name).update(last_beat_at=NowPlus(-silence))
    Worker.objects.record_stalled("stalled", 14)

    shown = text_of(staff("view_worker", "view_task").get(OVERVIEW).content.decode())

    assert "1 worker online." in shown
    assert "1 not responding." in shown
    assert "1 stands still." in shown
    assert "1 worker stands still: its process is stopped" in shown
    assert "1 offline." in shown


def test_the_heartbeats_of_a_worker_are_expected_at_the_interval_of_its_backend(staff, settings):
    intervals = dict.fromkeys(("claimer_heartbeat_interval_ms", "runner_heartbeat_interval_ms"), 5_000)
    settings.TASKS = settings.TASKS | {"other": settings.TASKS["default"] | {"OPTIONS": {"recovery": intervals}}}
    register(backend="other")
    Worker.objects.update(last_beat_at=NowPlus(-14))

    shown = text_of(staff("view_worker").get(LIST).content.decode())

    assert "not responding (no heartbeat for 14 s; expected every 5.0 s)" in shown


def test_the_list_shows_each_workers_load_and_links_its_running_tasks(staff):
    register()
    register("w-2")
    handles = hold(5)
    Task.objects.filter(pk=handles[0].id).update(started_at=NowPlus(-7_500), claimed_at=NowPlus(-7_500))
    client = staff("view_worker", "view_task")

    html = client.get(LIST).content.decode()

    assert "5/8" in html
    assert re.search("noop 2 h [5-9] min", text_of(html))
    assert "and 2 more" in html
    assert reverse("admin:horsies_django_task_change", args=[handles[0].id]) in html
    html = page(client, "w-1")
    assert all(str(handle.id) in html for handle in handles)
    assert "No tasks in progress." in page(client, "w-2")


def test_task_names_are_escaped(staff):
    register()
    hold(1)
    Task.objects.update(task_name="<b id=x>bold")
    client = staff("view_worker", "view_task")

    for html in (client.get(LIST).content.decode(), page(client, "w-1")):
        assert "&lt;b id=x&gt;bold" in html
        assert "<b id=x>" not in html


def test_users_who_may_not_view_tasks_see_only_how_many_a_worker_holds(staff):
    register()
    register("w-2")
    handles = hold(2)
    client = staff("view_worker")

    for html in (client.get(LIST).content.decode(), page(client, "w-1")):
        assert "2 tasks" in html
        assert "2/8" in html
        assert "noop" not in html
        assert not [handle for handle in handles if str(handle.id) in html]
    assert "No tasks in progress." in page(client, "w-2")


@pytest.mark.slow
def test_the_list_needs_as_many_queries_for_20_workers_as_for_one(staff):
    client = staff("view_worker", "stop_worker")

    def queries():
        with CaptureQueriesContext(connection) as captured:
            assert client.get(LIST).status_code == 200
        return len(captured)

    register()
    hold(3)
    one = queries()
    for number in range(20):
        register(f"more-{number}")
        hold(2, f"more-{number}")

    assert queries() == one <= 12


@pytest.mark.slow
def test_the_tasks_that_a_worker_holds_are_read_from_an_index(staff):
    register()
    tasks.noop.send_many({} for _ in range(3_000))
    Task.objects.update(status="COMPLETED", completed_at=F("sent_at"))
    hold(3)
    client = staff("view_worker", "view_task")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")

    with CaptureQueriesContext(connection) as captured:
        client.get(LIST)

    reads = [query["sql"] for query in captured if "horsies_tasks" in query["sql"]]
    assert len(reads) == 2
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        for sql in reads:
            cursor.execute(f"{explain} {sql}".replace("%", "%%"), [])
            assert "horsies_task_held" in str(cursor.fetchall()), sql


@pytest.mark.slow
def test_stopping_a_worker_asks_first_and_lets_running_tasks_finish(staff, worker, tmp_path):
    process = worker("--threads", "1", TEST_HEARTBEAT_MS="500", TEST_STALE_MS="60000")
    handle, _ = send_hold(tmp_path / "gate")
    row = Worker.objects.get()
    client = staff("view_worker", "stop_worker")
    address = reverse("admin:horsies_django_worker_do", args=[row.pk, "stop"])
    assert address in page(client, row.pk)

    confirmation = client.get(address).content.decode()
    assert "finishes the running ones" in confirmation
    assert Worker.objects.get().stop_requested_at is None
    client.post(address, {"confirmed": "1"})

    assert "stopping" in text_of(page(client, row.pk))
    (tmp_path / "gate").touch()
    assert process.wait() == 0
    assert handle.status() == "COMPLETED"
    entry = LogEntry.objects.get()
    assert "Stop gracefully. Stop requested at: None → " in entry.change_message


@pytest.mark.slow
def test_making_a_worker_quiet_asks_first_and_resuming_it_does_not(staff):
    register()
    client = staff("view_worker", "quiet_worker")
    quiet, resume = (reverse("admin:horsies_django_worker_do", args=["w-1", name]) for name in ("quiet", "resume"))
    html = page(client, "w-1")
    assert quiet in html
    assert resume not in html

    confirmation = client.get(quiet).content.decode()
    assert "stays until it is resumed or stopped" in confirmation
    assert Worker.objects.get().quiet_since is None
    client.post(quiet, {"confirmed": "1"})

    html = page(client, "w-1")
    assert "‖" not in html  # the style sheet has it
    assert 'class="horsies-quiet">quiet<' in html
    assert "quiet" in text_of(client.get(LIST).content.decode())
    assert resume in html
    assert quiet not in html
    client.post(resume)
    assert Worker.objects.get().quiet_since is None
    assert [entry.change_message.partition(" ")[0] for entry in LogEntry.objects.order_by("pk")] == [
        "Quiet.",
        "Resume.",
    ]


def test_selected_workers_are_made_quiet_by_users_with_the_permission(staff):
    register()
    register("w-2")
    post = {"action": "quiet", "_selected_action": ["w-1"], "confirmed": "1"}
    client = staff("view_worker", "stop_worker")
    client.post(LIST, post)
    assert not Worker.objects.filter(quiet_since__isnull=False).exists()
    address = reverse("admin:horsies_django_worker_do", args=["w-1", "quiet"])
    assert client.post(address, {"confirmed": "1"}).status_code == 403

    get_user_model().objects.get().user_permissions.add(Permission.objects.get(codename="quiet_worker"))
    client.post(LIST, post)

    assert [row.pk for row in Worker.objects.filter(quiet_since__isnull=False)] == ["w-1"]


def test_selected_workers_are_asked_to_stop(staff):
    register()
    register("w-2")
    client = staff("view_worker", "stop_worker")

    client.post(LIST, {"action": "stop", "_selected_action": ["w-1"], "confirmed": "1"})

    stopping = Worker.objects.filter(stop_requested_at__isnull=False)
    assert [row.pk for row in stopping] == ["w-1"]


def test_the_page_of_a_worker_has_the_times_of_its_states_alone(staff):
    register()
    client = staff("view_worker")

    assert "Quiet since" not in page(client, "w-1")
    Worker.objects.update(quiet_since=NowPlus(-60))
    assert "Quiet since" in page(client, "w-1")


def test_a_stop_request_does_not_overwrite_a_concurrent_one(staff):
    register()
    client = staff("view_worker", "stop_worker")
    concurrent = []

    def stop_concurrently(execute, sql, params, many, context):
        if sql.startswith("UPDATE") and "horsies_workers" in sql and not concurrent:
            concurrent.append(sql)
            Worker.objects.update(stop_requested_at=NowPlus(-3_600))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(stop_concurrently):
        client.post(reverse("admin:horsies_django_worker_do", args=["w-1", "stop"]), {"confirmed": "1"})

    assert concurrent
    assert Worker.objects.filter(stop_requested_at__lt=NowPlus(-1_800)).exists()
    assert not LogEntry.objects.exists()


def test_stopping_a_worker_needs_its_own_permission(staff):
    register()
    client = staff("view_worker")
    address = reverse("admin:horsies_django_worker_do", args=["w-1", "stop"])

    assert client.post(address, {"confirmed": "1"}).status_code == 403
    client.post(LIST, {"action": "stop", "_selected_action": ["w-1"], "confirmed": "1"})

    assert Worker.objects.get().stop_requested_at is None
    assert "Stop gracefully" not in page(client, "w-1") + client.get(LIST).content.decode()


def test_the_list_needs_the_view_permission(staff, client):
    register()

    assert client.get(LIST).status_code == 302
    assert staff("stop_worker").get(LIST).status_code == 403


def test_the_page_of_an_unknown_worker_says_that_it_does_not_exist(staff):
    client = staff("view_worker", "stop_worker")

    response = client.get(reverse("admin:horsies_django_worker_change", args=["gone"]), follow=True)

    assert "doesn’t exist" in response.content.decode()


def test_a_worker_row_written_by_an_older_version_is_shown(staff):
    register(threads=None, async_slots=None, version="")
    hold(1)

    assert "1/?" in staff("view_worker").get(LIST).content.decode()
