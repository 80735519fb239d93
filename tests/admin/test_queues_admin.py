"""The admin's list and pages of queues: depths, rules, pausing and resuming."""

import json
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection
from django.db.models.functions import Now, TruncMinute
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from horsies_django import TaskStatus
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Rollup, Task, Worker, depths
from horsies_django.models.rollup import RollupSpan
from horsies_django.ops.metrics import counts
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.ops.inspector.factories import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LIST = "/admin/horsies_django/queue/"


def rows(client):
    """Return the cells of each queue in the list, by its name."""
    html = client.get(LIST).content.decode()
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html, re.S):
        cells = {name: strip_tags(cell).strip() for name, cell in re.findall(r'class="field-(\w+)[^"]*">(.*?)</t', row)}
        if cells:
            found[cells["name"]] = cells
    return found


def page(client, key):
    return client.get(reverse("admin:horsies_django_queue_change", args=[key]))


def do(client, key, action, **posted):
    return client.post(reverse("admin:horsies_django_queue_do", args=[key, action]), posted, follow=True)


def send(queue, count=1, **options):
    return tasks.noop.with_options(queue_name=queue, **options).send_many({} for _ in range(count))


@pytest.mark.slow
def test_every_known_queue_is_listed_even_without_a_row(staff, settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["of-settings", "waiting", "later", "runs"]}}
    send("waiting", 3)
    tasks.noop.with_options(queue_name="later").schedule(3_600)
    running = send("runs")
    Task.objects.filter(pk=running[0].id).update(status="RUNNING", claimed_at=Now(), started_at=Now(), claim=1)
    Queue.objects.create(name="row", max_concurrency=5)

    found = rows(staff("view_queue"))

    assert found.keys() == {"of-settings", "waiting", "later", "runs", "row"}
    assert found["waiting"]["shown_due"] == "3"
    assert found["later"]["shown_scheduled"] == "1"
    assert found["runs"]["shown_held"] == "1"
    assert found["of-settings"]["shown_due"] == "0"
    assert found["row"]["shown_rules"] == "0 of 5 in progress"
    assert Queue.objects.count() == 1, "viewing the list adds no row"


@pytest.mark.slow
def test_the_numbers_of_a_queue_are_those_of_the_lists_behind_them(staff):
    for state in ("scheduled", "aggregating", "retrying", "pending", "running"):
        make(state, queue_name="emails")
    make("pending", queue_name="emails", deferred=True, enqueued_at=NowPlus(-60))
    make("pending", queue_name="emails", deferred=True, enqueued_at=NowPlus(-60), good_until=NowPlus(-30))
    client = staff("view_queue", "view_task")

    found = rows(client)["emails"]

    for state in ("due", "scheduled"):
        query = {"queue_name": "emails", "state": state, "kind": "all"}
        listed = client.get("/admin/horsies_django/task/", query).context["cl"].result_list
        assert found[f"shown_{state}"] == str(len(listed)) == {"due": "2", "scheduled": "1"}[state]


@pytest.mark.slow
def test_too_many_queues_are_reported_and_those_with_a_row_show_their_depth(staff, monkeypatch):
    monkeypatch.setattr(depths, "MAX_QUEUES", 2)
    Queue.objects.create(name="zzz", paused=True)
    for name in ("a", "b", "runs"):
        send(name)
    send("zzz", 5)
    Task.objects.filter(queue_name="runs").update(status="RUNNING", claimed_at=Now(), started_at=Now(), claim=1)
    send("runs")
    client = staff("view_task", "view_queue")

    found = rows(client)

    assert {name: cells["shown_due"] for name, cells in found.items()} | {"default": ""} == {
        "a": "1",
        "b": "1",
        "default": "",
        "runs": "0+",
        "zzz": "5",
    }
    overview = client.get("/admin/horsies_django/overview/").content.decode()
    for html in (client.get(LIST).content.decode(), overview):
        assert "There are more queues than this page reads" in html
    assert "Paused queues with due tasks: zzz." in overview


@pytest.mark.slow
@pytest.mark.once
def test_the_list_the_overview_and_the_status_show_a_bounded_number_of_queues(staff, capsys):
    names = [f"ended-{number:04}" for number in range(3_000)]
    Rollup.objects.bulk_create(
        Rollup(span=span, start=TruncMinute(Now()), queue_name=name, task_name="t", outcome="COMPLETED", count=1)
        for name in names
        for span in (RollupSpan.MINUTE, RollupSpan.HOUR)
    )
    client = staff("view_task", "view_queue")

    listed = rows(client)
    overview = client.get("/admin/horsies_django/overview/").content.decode()
    call_command("horsies_status", "--json")
    status = json.loads(capsys.readouterr().out)

    expected = ["default", *names[:200]]
    assert sorted(listed) == expected
    assert listed["ended-0000"]["shown_hour"] == "1"
    assert [queue["name"] for queue in status["queues"]] == expected
    assert status["queues_are_more"]
    assert "ended-0199" in overview
    assert "ended-0200" not in overview
    assert "There are more queues" in overview


def test_the_oldest_due_task_counts_regardless_of_priority_and_kind(staff):
    send("emails", 2, priority=50)
    job = tasks.awrite.with_options(queue_name="emails", priority=3)
    old = [*send("emails", priority=-10), job.send(key="a")]
    Task.objects.filter(pk=old[0].id).update(enqueued_at=NowPlus(-7_500))
    Task.objects.filter(pk=old[1].id).update(enqueued_at=NowPlus(-30))

    found = rows(staff("view_queue"))

    assert found["emails"]["shown_due"] == "4"
    assert re.match("2 h [5-9] min", found["emails"]["shown_oldest"])


@pytest.mark.slow
def test_at_most_a_thousand_due_tasks_of_a_queue_are_counted(staff):
    send("emails", 1_001)

    assert rows(staff("view_queue"))["emails"]["shown_due"] == "1,000+"


def test_scheduled_tasks_are_counted_up_to_a_bound_of_all_queues(staff, monkeypatch):
    monkeypatch.setattr(counts, "MAX_COUNTED", 3)
    tasks.noop.with_options(queue_name="reports").schedule(9_000)
    for _ in range(4):
        tasks.noop.with_options(queue_name="emails").schedule(60)
    send("reports")
    client = staff("view_queue")

    found = rows(client)

    assert found["emails"]["shown_scheduled"] == "3+"
    assert found["reports"]["shown_scheduled"] == found["default"]["shown_scheduled"] == "0+"


def test_the_page_of_a_queue_has_one_save_button(staff):
    html = page(staff("view_queue", "change_queue", "add_queue"), "~emails").content.decode()

    assert re.findall(r'<input type="submit"[^>]* name="(_\w+)"', html) == ["_save"]


def test_counts_of_the_last_hour_come_from_the_roll_ups(staff):
    def roll(outcome, count, start=None, span="M"):
        start = start or TruncMinute(Now())
        return Rollup(span=span, start=start, queue_name="emails", task_name="t", outcome=outcome, count=count)

    for row in (
        roll("COMPLETED", 40),
        roll("FAILED", 2),
        roll("COMPLETED", 9, NowPlus(-7_200)),
        roll("FAILED", 9, span="H"),
    ):
        row.save()

    assert rows(staff("view_queue"))["emails"]["shown_hour"] == "42, 2 failed"


@pytest.mark.slow
def test_the_workers_that_serve_a_queue_are_counted(staff):
    Worker.objects.register("any", "", "h", 1)
    Worker.objects.register("emails", "", "h", 1, queues=["emails"])
    Worker.objects.register("not-emails", "", "h", 1, excluded_queues=["emails"])
    Worker.objects.register("silent", "", "h", 1)
    Worker.objects.filter(pk="silent").update(last_beat_at=NowPlus(-3_600))
    Worker.objects.register("leaving", "", "h", 1)
    Worker.objects.filter(pk="leaving").request_stop()
    Worker.objects.register("quiet", "", "h", 1, is_quiet=True)
    send("emails")
    client = staff("view_queue")

    found = rows(client)

    assert (found["emails"]["shown_workers"], found["default"]["shown_workers"]) == ("2", "2")
    assert "2 workers" in page(client, "~emails").content.decode()


@pytest.mark.slow
def test_the_list_needs_as_many_queries_for_40_queues_as_for_two(staff):
    client = staff("view_queue", "pause_queue", "resume_queue")

    def queries():
        with CaptureQueriesContext(connection) as captured:
            assert client.get(LIST).status_code == 200
        return len(captured)

    send("q0")
    few = queries()
    for number in range(40):
        send(f"q{number}")

    assert queries() == few <= 16


@pytest.mark.slow
def test_a_queue_without_a_row_is_paused_and_resumed_from_its_page(staff):
    client = staff("view_queue", "pause_queue", "resume_queue")
    html = page(client, "~emails").content.decode()
    assert "Pause" in html

    html = do(client, "~emails", "pause").content.decode()

    assert Queue.objects.get().paused
    assert "1 queue paused." in html
    key = Queue.objects.get().pk
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Pause. Paused: False → True."]
    assert "1 was skipped" in do(client, key, "pause").content.decode()
    do(client, key, "resume")
    assert not Queue.objects.get().paused


def test_queues_with_and_without_a_row_are_paused_from_the_list(staff):
    saved = Queue.objects.create(name="reports")
    client = staff("view_queue", "pause_queue")

    client.post(LIST, {"action": "pause", "_selected_action": [str(saved.pk), "~emails"]})

    assert set(Queue.objects.filter(paused=True).values_list("name", flat=True)) == {"emails", "reports"}


@pytest.mark.parametrize(
    ("permission", "action"), [("pause_queue", "resume"), ("resume_queue", "pause"), ("change_queue", "pause")]
)
def test_pause_and_resume_each_need_their_own_permission(staff, permission, action):
    Queue.objects.create(name="emails", paused=action == "resume")
    key = Queue.objects.get().pk
    client = staff("view_queue", permission)

    assert client.post(reverse("admin:horsies_django_queue_do", args=[key, action])).status_code == 403
    assert client.post(reverse("admin:horsies_django_queue_do", args=["~new", action])).status_code == 403
    client.post(LIST, {"action": action, "_selected_action": [str(key), "~new"]})
    client.post(
        reverse("admin:horsies_django_queue_change", args=[key]), {"paused": {"pause": "on", "resume": ""}[action]}
    )

    assert Queue.objects.get().paused is (action == "resume")


@pytest.mark.slow
def test_the_view_permission_alone_shows_no_button_and_no_form(staff):
    send("emails")
    client = staff("view_queue")

    html = client.get(LIST).content.decode() + page(client, "~emails").content.decode()

    assert 'name="action"' not in html
    assert 'name="max_concurrency"' not in html
    assert "/do/" not in html
    assert client.post(reverse("admin:horsies_django_queue_change", args=["~emails"]), {}).status_code == 403
    assert not Queue.objects.exists()


@pytest.mark.slow
def test_get_requests_change_nothing(staff):
    client = staff("view_queue", "pause_queue", "resume_queue", "change_queue")
    row = Queue.objects.create(name="reports")

    for key in ("~emails", row.pk):
        client.get(reverse("admin:horsies_django_queue_do", args=[key, "pause"]))
        page(client, key)

    assert list(Queue.objects.values_list("name", "paused")) == [("reports", False)]


def test_the_change_permission_allows_editing_the_rules_of_a_queue(staff):
    client = staff("view_queue", "change_queue")
    data = {
        "max_concurrency": "5",
        "rate_limit": "100/m, 10",
        "priority": "-3",
        "weight": "6",
        "retention": "2 00:00:00",
        "retention_by_state": '{"failed": "30d"}',
    }

    response = client.post(reverse("admin:horsies_django_queue_change", args=["~emails"]), data)

    assert response.status_code == 302
    row = Queue.objects.get(name="emails")
    assert (row.max_concurrency, row.rate_limit, row.priority, row.weight) == (5, "100/m, 10", -3, 6)
    assert rows(client)["emails"]["shown_rules"] == (
        "0 of 5 in progress; rate 100/m, 10, 10 tokens left; priority -3; weight 6; kept for 2 d; Failed: kept for 30 d"
    )


def test_the_form_shows_the_default_that_the_settings_give_each_field(staff, settings):
    options = {"queues": {"emails": {"rate_limit": "600/m", "weight": 3}}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["emails"], "OPTIONS": options}}
    client = staff("view_queue", "change_queue", "add_queue")

    html = page(client, "~emails").content.decode()

    assert "Default: 600/m (settings)." in html
    assert "Default: 3 (settings)." in html
    assert "Default: no limit (settings)." in html
    added = client.get(reverse("admin:horsies_django_queue_add")).content.decode()
    assert added.count("Empty: default (settings).") == 6


def test_the_history_of_a_queue_shows_the_old_and_the_new_value_of_each_edited_field(staff, settings):
    options = {"queues": {"emails": {"rate_limit": "600/m"}}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["emails"], "OPTIONS": options}}
    client = staff("view_queue", "change_queue")
    queue = Queue.objects.create(name="emails")
    url = reverse("admin:horsies_django_queue_change", args=[queue.pk])

    client.post(url, {"rate_limit": "300/m", "retention_by_state": "null"})
    client.post(url, {"rate_limit": "100/m", "weight": "3", "retention_by_state": "null"})

    logged = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert logged == ["Rate limit: 600/m → 300/m.", "Rate limit: 300/m → 100/m. Weight: 1 → 3."]
    history = client.get(reverse("admin:horsies_django_queue_history", args=[queue.pk])).content.decode()
    assert "Rate limit: 600/m → 300/m." in history


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_concurrency", "-1", "greater than or equal to 0"),
        ("rate_limit", "5/w", "Allowed: a number, a slash"),
        ("priority", "101", "Allowed: a whole number from -100 to 100."),
        ("weight", "0", "Allowed: a whole number from 1 to 1000."),
        ("retention", "-1", "Allowed: a duration from 0"),
        ("retention_by_state", '{"fialed": 5}', "Allowed: an object with failed, cancelled or expired"),
    ],
)
def test_an_invalid_rule_is_reported_beside_its_field(staff, name, value, message):
    client = staff("view_queue", "change_queue")

    html = client.post(reverse("admin:horsies_django_queue_change", args=["~emails"]), {name: value}).content.decode()

    field = html.partition(f"field-{name}")[2].partition("form-row")[0]
    assert "errorlist" in field
    assert message in field
    assert getattr(Queue.objects.get(name="emails"), name) is None


def test_saving_a_stale_page_does_not_resume_a_paused_queue(staff):
    row = Queue.objects.create(name="emails", paused=True)

    staff("view_queue", "change_queue").post(
        reverse("admin:horsies_django_queue_change", args=[row.pk]), {"name": "other", "max_concurrency": "5"}
    )

    assert list(Queue.objects.values_list("name", "paused", "max_concurrency")) == [("emails", True, 5)]


@pytest.mark.parametrize("permissions", [(), ("pause_queue",)])
def test_adding_a_paused_queue_needs_the_pause_permission(staff, permissions):
    client = staff("view_queue", "add_queue", *permissions)

    client.post(f"{LIST}add/", {"name": "emails", "paused": "on"})

    assert Queue.objects.get(name="emails").paused is bool(permissions)


def test_a_paused_queue_cannot_be_deleted_since_that_would_resume_it(staff):
    row = Queue.objects.create(name="emails", paused=True)
    client = staff("view_queue", "delete_queue")
    address = reverse("admin:horsies_django_queue_delete", args=[row.pk])

    assert client.post(address, {"post": "yes"}).status_code == 403
    Queue.objects.update(paused=False)
    assert client.post(address, {"post": "yes"}).status_code == 302
    assert not Queue.objects.exists()


def test_a_queue_that_is_paused_during_its_deletion_is_kept(staff):
    row = Queue.objects.create(name="emails")
    client = staff("view_queue", "delete_queue")
    paused = []

    def pause(execute, sql, *rest):
        if "DELETE" in sql and "horsies_queues" in sql and not paused:
            paused.append(Queue.objects.pause())
        return execute(sql, *rest)

    with connection.execute_wrapper(pause):
        response = client.post(reverse("admin:horsies_django_queue_delete", args=[row.pk]), {"post": "yes"})

    assert (response.status_code, paused) == (403, [1])
    assert Queue.objects.filter(pk=row.pk).exists()


def test_a_queue_without_a_row_cannot_be_deleted(staff):
    client = staff("view_queue", "delete_queue")

    assert "/delete/" not in page(client, "~default").content.decode()
    address = reverse("admin:horsies_django_queue_delete", args=["~default"])
    assert client.post(address, {"post": "yes"}).status_code == 403


def test_a_limit_is_saved_though_the_row_is_deleted_meanwhile(staff):
    row = Queue.objects.create(name="emails")
    client = staff("view_queue", "change_queue")
    deleted = []

    def delete(execute, sql, *rest):
        if sql.startswith(("INSERT", "UPDATE")) and "horsies_queues" in sql and not deleted:
            deleted.append(Queue.objects.filter(pk=row.pk).delete())
        return execute(sql, *rest)

    with connection.execute_wrapper(delete):
        response = client.post(reverse("admin:horsies_django_queue_change", args=[row.pk]), {"max_concurrency": "3"})

    assert response.status_code == 302
    assert (Queue.objects.get().name, Queue.objects.get().max_concurrency) == ("emails", 3)


@pytest.mark.slow
def test_html_in_queue_names_is_escaped(staff):
    name = '<script>alert(1)</script>/"&_41'
    row = tasks.noop.send()
    Task.objects.filter(pk=row.id).update(queue_name=name)
    client = staff("view_queue", "pause_queue")
    html = client.get(LIST).content.decode()
    assert "<script>alert" not in html
    address = next(address for address in re.findall(r'href="([^"]+)"', html) if "~" in address)

    assert "<script>alert" not in client.get(address).content.decode()
    action = re.search(r'action="([^"]+/do/pause/)"', client.get(address).content.decode())[1]
    client.post(action)

    assert Queue.objects.get().name == name


@pytest.mark.slow
def test_a_worker_claims_from_a_paused_queue_only_after_it_is_resumed(staff, worker):
    client = staff("view_queue", "pause_queue", "resume_queue")
    worker("--threads", "2")
    do(client, "~emails", "pause")
    paused = send("emails", 5)
    others = send("default", 5)

    wait_until(lambda: all(handle.status() == TaskStatus.COMPLETED for handle in others))
    assert {handle.status() for handle in paused} == {TaskStatus.PENDING}
    assert rows(client)["emails"]["shown_due"] == "5"
    do(client, Queue.objects.get().pk, "resume")

    wait_until(lambda: all(handle.status() == TaskStatus.COMPLETED for handle in paused))


def test_a_duplicate_queue_name_is_rejected(staff):
    Queue.objects.create(name="emails")

    html = staff("view_queue", "add_queue").post(f"{LIST}add/", {"name": "emails"}).content.decode()

    assert "already exists" in html
    assert Queue.objects.count() == 1


@pytest.mark.slow
def test_counts_link_to_tasks_for_users_who_may_view_tasks(staff):
    tasks.on_emails.send()
    client = staff("view_queue")

    assert "/horsies_django/task/" not in page(client, "~emails").content.decode()
    get_user_model().objects.get().user_permissions.add(Permission.objects.get(codename="view_task"))
    assert "/horsies_django/task/?queue_name=emails&amp;state=due" in page(client, "~emails").content.decode()
