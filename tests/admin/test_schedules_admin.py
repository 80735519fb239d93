"""Schedules in the admin: timings as text, the list, the form, the preview, the actions and the runs."""

import json
import re
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.html import strip_tags

from horsies_django import Workflow as Definition
from horsies_django.admin.schedules.admin import RUN_NOW
from horsies_django.admin.schedules.timing_text import describe_timing
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Schedule, Task, Workflow
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.once]

LIST = "/admin/horsies_django/schedule/"
RIGHTS = ("view_schedule", "change_schedule", "add_schedule", "delete_schedule")
PERMISSIONS = ("enable_schedule", "disable_schedule", "run_now_schedule")


def make(name="nightly", **columns):
    given = {"task_name": tasks.noop.module_path, "timing": "cron:0 9 * * MON-FRI", "timezone": "Europe/Berlin"}
    schedule = Schedule(name=name, **given | columns)
    schedule.save()
    return schedule


def address(schedule, page="change", *more):
    return reverse(f"admin:horsies_django_schedule_{page}", args=[schedule.pk, *more])


def page(client, schedule):
    response = client.get(address(schedule))
    assert response.status_code == 200
    return response.content.decode()


def posted(schedule=None, **changed):
    """Return what the form of a schedule posts, with some fields changed."""
    row = schedule or Schedule(task_name=tasks.noop.module_path)
    names = ("name", "task_name", "workflow_name", "timing", "timezone", "catch_up", "max_catch_up_runs", "overlap")
    data = {name: getattr(row, name) or "" for name in names}
    data |= {name: json.dumps(getattr(row, name)) for name in ("args", "kwargs", "options")}
    return data | {"jitter": row.jitter, "backend": row.backend, "start_at_0": "", "start_at_1": ""} | changed


def errors(response):
    """Return the errors of a form, by field."""
    return {name: list(messages) for name, messages in response.context["adminform"].form.errors.items()}


def do(client, schedule, action):
    return client.post(address(schedule, "do", action), follow=True)


def cells(client, query=""):
    """Return the cells of each schedule in the list, by its name."""
    html = client.get(LIST + query).content.decode()
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html, re.S):
        row_cells = re.findall(r'class="field-(\w+)[^"]*">(.*?)</t[dh]>', row, re.S)
        texts = {name: re.sub(r"\s+", " ", strip_tags(cell)).strip() for name, cell in row_cells}
        if texts:
            found[texts["name"]] = texts
    return found


# Timings as text.


@pytest.mark.once
@pytest.mark.parametrize(
    ("timing", "description"),
    [
        ("cron:0 9 * * MON-FRI", "At 09:00, Monday through Friday (Europe/Berlin)"),
        ("cron:30 0 9 * * *", "At 09:00:30 (Europe/Berlin)"),
        ("cron:0 0 L * *", "At 00:00, on the last day of the month (Europe/Berlin)"),
        ("cron:0 9 ? * 5#2", "At 09:00, on the second Friday of the month (Europe/Berlin)"),
        ("every:300", "every 5 minutes"),
        ("every:86400", "every day"),
        ("every:90", "every 90 seconds"),
        ("cron:what", "what (Europe/Berlin)"),
        ("odd", "odd (Europe/Berlin)"),
    ],
)
def test_a_timing_is_described_in_words_with_its_time_zone(timing, description):
    assert describe_timing(timing, "Europe/Berlin") == description


@pytest.mark.once
def test_a_timing_is_described_in_the_active_language():
    with translation.override("de"):
        assert describe_timing("cron:0 9 * * MON-FRI", "UTC") == "Um 09:00, Montag bis Freitag (UTC)"
    with translation.override("tr"):
        assert "Pazartesi ile Cuma" in describe_timing("cron:0 9 * * MON-FRI", "UTC")


@pytest.mark.once
@pytest.mark.parametrize(
    "library",
    [
        None,
        SimpleNamespace(__version__="1.4.4", Options=SimpleNamespace, get_description=lambda text, options: "odd"),
        SimpleNamespace(__version__="3.0", Options=SimpleNamespace, get_description=lambda text, options: "odd"),
        SimpleNamespace(__version__="2.9"),
    ],
    ids=["missing", "too old", "too new", "failing"],
)
def test_a_timing_that_no_tested_cron_descriptor_describes_is_shown_as_its_expression(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "cron_descriptor", library)

    assert describe_timing("cron:0 9 * * MON-FRI", "UTC") == "0 9 * * MON-FRI (UTC)"


# The list.


@pytest.mark.slow
def test_the_list_shows_target_timing_next_run_and_last_error(staff):
    make(run_count=3, last_error="TypeError: odd")
    Schedule.objects.update(next_run_at=NowPlus(7_500), last_run_at=NowPlus(-150))
    make("old", timing="every:300", source="shop")
    make("off", timing="every:300", source="shop", declared_enabled=False)
    Schedule.objects.filter(name__in=["old", "off"]).update(enabled=False, disabled_by="CODE", next_run_at=None)

    found = cells(staff("view_schedule"))

    assert found["nightly"]["shown_when"] == "At 09:00, Monday through Friday (Europe/Berlin)"
    assert found["nightly"]["shown_target"] == tasks.noop.module_path
    assert re.match(r"in 2 h \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", found["nightly"]["shown_next"])
    assert re.match(r"\d min ago \d{4}-", found["nightly"]["shown_last"])
    assert (found["nightly"]["shown_count"], found["nightly"]["shown_error"]) == ("3", "TypeError: odd")
    assert (found["old"]["shown_state"], found["old"]["shown_next"]) == ("removed from the code", "-")
    assert found["off"]["shown_state"] == "disabled in code"


@pytest.mark.slow
def test_the_list_is_filtered_by_state_trouble_and_source(staff):
    make("runs")
    make("stopped", enabled=False)
    make("of-code", source="shop")
    make("broken")
    Schedule.objects.filter(name="broken").update(enabled=False, disabled_by="TIMING", last_error="odd")
    client = staff("view_schedule")

    by_state = ("?state=enabled", "?state=disabled", "?state=TIMING", "?state=nonsense")
    names = {query: set(cells(client, query)) for query in by_state}
    names |= {
        query: set(cells(client, query)) for query in ("?trouble=error", "?source=code", "?q=RUN", "?state=nonsense")
    }

    assert names == {
        "?state=enabled": {"runs", "of-code"},
        "?state=disabled": {"stopped", "broken"},
        "?state=TIMING": {"broken"},
        "?trouble=error": {"broken"},
        "?source=code": {"of-code"},
        "?q=RUN": {"runs"},
        "?state=nonsense": set(),
    }


@pytest.mark.slow
def test_the_list_needs_as_many_queries_for_40_schedules_as_for_one(staff):
    client = staff("view_schedule", *PERMISSIONS)
    make()

    def queries():
        with CaptureQueriesContext(connection) as captured:
            assert client.get(LIST).status_code == 200
        counts = [each["sql"] for each in captured if "COUNT(" in each["sql"] and "horsies_schedules" in each["sql"]]
        assert all("LIMIT 10000" in sql for sql in counts)
        return len(captured)

    one = queries()
    for number in range(40):
        make(f"s{number}")

    assert queries() == one <= 8


# Adding and editing.


def test_a_user_who_may_enable_schedules_adds_an_enabled_schedule(staff):
    client = staff("view_schedule", "add_schedule", "enable_schedule")

    data = posted(name="report", timing="every:300", timezone="UTC", kwargs="{}", enabled="on")
    response = client.post(f"{LIST}add/", data)

    assert response.status_code == 302, errors(response)
    row = Schedule.objects.get()
    assert (row.name, row.enabled, row.source, row.args, row.task_name) == ("report", True, "", [], data["task_name"])
    assert row.workflow_name is None
    assert row.next_run_at > datetime.now(UTC)


@pytest.mark.slow
def test_a_bare_cron_expression_uses_the_projects_time_zone(staff, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    client = staff(*RIGHTS)
    assert 'value="Asia/Tokyo"' in client.get(f"{LIST}add/").content.decode()

    response = client.post(f"{LIST}add/", posted(name="bare", timing=" 0  9 * * * ", kwargs="{}"))
    assert response.status_code == 302, errors(response)
    row = Schedule.objects.get()
    assert (row.timing, row.timezone) == ("cron:0  9 * * *", "Asia/Tokyo")
    assert len(times(preview(client, timing="@daily"))) == 5
    messages = errors(client.post(f"{LIST}add/", posted(name="x", timing="61 9 * * *")))
    assert "the minute is '61'" in messages["timing"][0]


def test_a_schedule_added_without_the_enable_permission_is_disabled(staff):
    client = staff("view_schedule", "add_schedule")
    assert 'name="enabled"' not in client.get(f"{LIST}add/").content.decode()

    client.post(f"{LIST}add/", posted(name="report", timing="every:300", enabled="on"))

    row = Schedule.objects.get()
    assert (row.enabled, row.disabled_by, row.next_run_at) == (False, "OPERATOR", None)


def test_the_error_of_a_bad_cron_expression_quotes_it_and_names_its_field(staff):
    client = staff(*RIGHTS)

    messages = errors(client.post(f"{LIST}add/", posted(name="x", timing="cron:0 9 * * MON-FRX", timezone="Mars")))

    assert "'0 9 * * MON-FRX'" in messages["timing"][0]
    assert "day of the week" in messages["timing"][0]
    assert "'Mars'" in messages["timezone"][0]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("task_name", "os.system", "not a task of this project"),
        ("task_name", "tests.never.imported", "not a task of this project"),
        ("task_name", "horsies_django.workflows.engine_tasks.decide", "not a task of this project"),
        ("task_name", "", "one of the two"),
        ("workflow_name", "unknown", "one of the two"),
        ("args", "[1", "Enter a valid JSON"),
        ("args", '{"a": 1}', "allowed: a list"),
        ("kwargs", "[1]", "allowed: a dict"),
        ("kwargs", '{"nothing": 1}', "nothing"),
        ("options", '{"colour": 1}', "colour"),
        ("options", "[]", "allowed: a dict"),
        ("jitter", "-1", "jitter"),
        ("max_catch_up_runs", "0", "max_catch_up_runs"),
        ("name", "taken", "already exists"),
    ],
)
def test_each_form_error_appears_beside_its_field(staff, field, value, error):
    make("taken")
    client = staff(*RIGHTS)

    response = client.post(f"{LIST}add/", posted(**{"name": "x", "timing": "every:60", field: value}))

    assert response.status_code == 200
    assert error in errors(response)[field][0]
    assert Schedule.objects.count() == 1


def test_saving_a_new_timing_replans_and_keeps_the_schedulers_columns(staff):
    schedule = make()
    planned = schedule.next_run_at
    client = staff(*RIGHTS)
    client.get(address(schedule))
    Schedule.objects.update(run_count=7, last_error="odd")  # the scheduler has sent a run meanwhile

    assert client.post(address(schedule), posted(schedule, overlap="skip")).status_code == 302
    row = Schedule.objects.get()
    assert (row.overlap, row.next_run_at, row.run_count, row.last_error) == ("skip", planned, 7, "odd")
    client.post(address(schedule), posted(row, timing="cron:0 10 * * *"))

    row = Schedule.objects.get()
    assert row.next_run_at != planned
    assert (row.timing, row.run_count, row.overlap) == ("cron:0 10 * * *", 7, "skip")


def test_saving_does_not_enable_a_schedule_that_was_disabled_meanwhile(staff):
    schedule = make()
    client = staff(*RIGHTS)
    Schedule.objects.disable()

    client.post(address(schedule), posted(schedule, timing="cron:0 10 * * *", enabled="on"))

    assert not Schedule.objects.get().enabled


def test_a_declared_schedule_cannot_be_edited_and_names_its_app(staff):
    schedule = make(source="shop", declared_enabled=True, kwargs={"password": "hunter2"})
    client = staff(*RIGHTS, *PERMISSIONS)

    html = page(client, schedule)

    assert "Defined in code (shop); edit it there." in html
    assert "hunter2" not in html
    assert 'name="timing"' not in html
    assert 'name="_save"' not in html
    assert address(schedule, "do", "disable") in html
    assert client.post(address(schedule), posted(schedule, timing="every:1")).status_code == 403
    assert client.post(address(schedule, "delete"), {"post": "yes"}).status_code == 403
    assert Schedule.objects.get().timing == schedule.timing


def test_a_schedule_removed_from_the_code_can_be_disabled_and_deleted(staff):
    schedule = make(source="shop")
    Schedule.objects.update(enabled=False, disabled_by="CODE", next_run_at=None)

    client = staff(*RIGHTS, *PERMISSIONS)
    assert "1 schedule disabled." in do(client, schedule, "disable").content.decode()
    assert Schedule.objects.get().disabled_by == "OPERATOR"
    client.post(address(schedule, "delete"), {"post": "yes"})

    assert not Schedule.objects.exists()


# The preview.


def preview(client, schedule=None, **typed):
    given = {"timing": "cron:30 2 * * *", "timezone": "Europe/Berlin", "jitter": "0"} | typed
    url = f"{LIST}preview/" if schedule is None else address(schedule, "preview")
    return client.get(url, given)


def times(response):
    return re.findall(r"<li>(\w{3} [\d-]+ [\d:]+ \w+)", response.content.decode())


def test_the_preview_shows_the_timing_in_words_and_the_next_five_runs(staff):
    response = preview(staff("view_schedule", "add_schedule"), start_at_0="2126-03-28", start_at_1="00:00:00")

    assert "At 02:30 (Europe/Berlin)" in response.content.decode()
    assert times(response) == [
        "Thu 2126-03-28 02:30:00 CET",
        "Fri 2126-03-29 02:30:00 CET",
        "Sat 2126-03-30 02:30:00 CET",
        "Sun 2126-03-31 03:00:00 CEST",
        "Mon 2126-04-01 02:30:00 CEST",
    ]


def test_the_preview_skips_nonexistent_local_times_on_request(staff):
    client = staff("view_schedule", "add_schedule")

    response = preview(client, start_at_0="2126-03-31", start_at_1="00:00:00", skip_nonexistent="on")

    assert times(response)[0] == "Mon 2126-04-01 02:30:00 CEST"


def test_the_preview_stops_at_the_end_of_the_schedule(staff):
    client = staff("view_schedule", "add_schedule")
    window = {"start_at_0": "2126-03-28", "start_at_1": "00:00", "end_at_0": "2126-03-29", "end_at_1": "12:00"}

    assert len(times(preview(client, **window))) == 2
    assert "No more runs" in preview(client, end_at_0="2000-01-01", end_at_1="00:00").content.decode()


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ({"timing": "cron:61 * * * *"}, "the minute is"),
        ({"timezone": "Mars"}, "Mars"),
        ({"start_at_0": "soon", "start_at_1": "x"}, "Enter a valid date"),
        ({"timing": ""}, "Enter a timing to preview the next five runs."),
        ({"jitter": "much"}, "Enter a number"),
        ({"timing": "<script>alert(1)</script>"}, "is not a timing"),
    ],
)
def test_the_preview_shows_what_is_wrong_with_the_typed_values(staff, typed, error):
    html = preview(staff("view_schedule", "add_schedule"), **typed).content.decode()

    assert error in html
    assert "<script>" not in html


@pytest.mark.slow
def test_a_rejected_form_previews_the_typed_timing(staff):
    client = staff(*RIGHTS)
    schedule = make()

    for url, data in ((f"{LIST}add/", posted(name="")), (address(schedule), posted(schedule, name=""))):
        response = client.post(url, data | {"timing": "cron:30 2 * * *", "timezone": "Asia/Tokyo"})

        assert list(errors(response)) == ["name"]
        assert "At 02:30 (Asia/Tokyo)" in response.content.decode()
        assert len(times(response)) == 5


@pytest.mark.slow
def test_the_preview_of_an_unchanged_schedule_shows_the_planned_run(staff):
    schedule = make(jitter=30.0, timing="cron:0 9 1 1 *")  # so rare that no run falls into the test
    client = staff("view_schedule", "change_schedule")

    typed = {"name": "nightly", "timing": schedule.timing, "jitter": "30.0"}
    first = times(preview(client, schedule, **typed))[0]

    planned = schedule.next_run_at.astimezone(schedule.slots.zone)
    assert first == f"{planned:%a %Y-%m-%d %H:%M:%S %Z}"
    assert first in page(client, schedule)


def test_the_preview_writes_nothing_and_needs_permission_to_edit(staff, client):
    schedule, declared = make(), make("code", source="shop")
    assert client.get(f"{LIST}preview/").status_code == 302
    assert preview(staff("view_schedule")).status_code == 403
    assert preview(client, schedule).status_code == 403

    client = grant(client, "change_schedule")
    assert preview(client, schedule).status_code == 200
    assert preview(client, declared).status_code == 403
    assert client.post(address(schedule, "preview")).status_code == 405
    assert Schedule.objects.get(pk=schedule.pk).timing == schedule.timing


def grant(client, permission):
    """Give the logged-in user another permission."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    get_user_model().objects.get().user_permissions.add(Permission.objects.get(codename=permission))
    return client


# Actions.


@pytest.mark.slow
def test_disable_enable_and_run_now_work_from_the_page_and_are_logged(staff):
    schedule = make()
    client = staff("view_schedule", *PERMISSIONS)

    assert "1 schedule disabled." in do(client, schedule, "disable").content.decode()
    row = Schedule.objects.get()
    assert (row.enabled, row.disabled_by, row.next_run_at) == (False, "OPERATOR", None)
    assert "1 was skipped" in do(client, schedule, "disable").content.decode()
    assert "1 schedule enabled." in do(client, schedule, "enable").content.decode()
    planned = Schedule.objects.get().next_run_at
    assert "1 run enqueued." in do(client, schedule, "run_now").content.decode()

    row, task = Schedule.objects.get(), Task.objects.get()
    assert (row.enabled, row.next_run_at, row.last_task_id) == (True, planned, task.pk)
    assert (task.schedule_id, task.task_name) == (schedule.pk, tasks.noop.module_path)
    logged = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert logged[0] == "Disable. Enabled: True → False."
    assert logged[1].startswith("Enable. Enabled: False → True")
    assert f"→ {task.pk}" in logged[2]


def test_run_now_works_on_several_schedules_in_the_list(staff):
    schedules = [make(f"s{number}") for number in range(3)]

    keys = [str(schedule.pk) for schedule in schedules]
    staff("view_schedule", *PERMISSIONS).post(LIST, {"action": "run_now", "_selected_action": keys})

    assert Task.objects.count() == LogEntry.objects.count() == 3


def test_run_now_reports_a_broken_schedule_and_runs_the_others(staff):
    broken, sound = make("gone"), make("sound")
    Schedule.objects.filter(pk=broken.pk).update(task_name="tests.jobs.tasks.gone")
    client = staff("view_schedule", *PERMISSIONS)

    keys = [str(broken.pk), str(sound.pk)]
    html = client.post(LIST, {"action": "run_now", "_selected_action": keys}, follow=True).content.decode()

    assert "1 run enqueued." in html
    assert "tests.jobs.tasks" in html
    assert Task.objects.get().schedule_id == sound.pk
    assert "gone" in Schedule.objects.get(pk=broken.pk).last_error


def test_run_now_stores_the_error_only_on_the_broken_schedule():
    for name in ("a", "b", "c"):
        make(name)
    Schedule.objects.filter(name="b").update(task_name="no.such")

    assert RUN_NOW.act(Schedule.objects.all()) == Task.objects.count() == 2
    assert dict(Schedule.objects.exclude(last_error="").values_list("name", "last_error")).keys() == {"b"}


def test_the_page_shows_an_overdue_run_and_the_last_error(staff):
    schedule = make()
    Schedule.objects.update(next_run_at=NowPlus(-90), last_error="odd")

    html = page(staff("view_schedule"), schedule)

    assert "It is overdue: no scheduler has run it." in html
    assert "The latest run could not be enqueued: odd" in html


def test_the_page_of_an_unreadable_timing_opens_and_says_why(staff):
    schedule = make()
    Schedule.objects.update(timing="cron:61 * * * *", timezone="Mars", enabled=False, disabled_by="TIMING")
    client = staff(*RIGHTS)

    assert "the minute is" in page(client, schedule)
    assert cells(client)["nightly"]["shown_when"] == "cron:61 * * * *"


# Runs.


@pytest.mark.slow
def test_the_page_lists_the_latest_runs_and_links_to_all_of_them(staff):
    schedule = make()
    Task.objects.create(task_name="shop.other")
    sent = [Task.objects.create(task_name=f"shop.t{number}", schedule_id=schedule.pk) for number in range(25)]
    run = Workflow.objects.get(pk=Definition("made", [tasks.noop.node()()]).start().id)
    Workflow.objects.filter(pk=run.pk).update(schedule_id=schedule.pk)
    client = staff("view_schedule", "view_task", "view_workflow")

    html = page(client, schedule)

    assert html.count('<th scope="row"><a href="/admin/horsies_django/') == 20
    assert reverse("admin:horsies_django_task_change", args=[sent[-1].pk]) in html
    assert reverse("admin:horsies_django_workflow_change", args=[run.pk]) in html
    for model in ("task", "workflow"):
        (link,) = re.findall(rf'href="(/admin/horsies_django/{model}/\?schedule_id=[^"]+)"', html)
        listed = client.get(link.replace("&amp;", "&")).content.decode()
        assert "shop.other" not in listed
        assert "nightly" in listed, "the list names the schedule that it is filtered by"
    assert ">t0<" in client.get(f"/admin/horsies_django/task/?schedule_id={schedule.pk}").content.decode()


def test_the_page_hides_runs_from_users_who_may_not_view_tasks(staff):
    schedule = make()
    Task.objects.create(task_name="shop.secret", schedule_id=schedule.pk)

    html = page(staff("view_schedule"), schedule)

    assert "shop.secret" not in html
    assert "You do not have permission to view its tasks or workflows." in html


@pytest.mark.slow
def test_task_and_workflow_pages_link_to_their_schedule(staff):
    schedule = make()
    task = Task.objects.create(task_name="shop.t", schedule_id=schedule.pk)
    run = Definition("made", [tasks.noop.node()()]).start().id
    Workflow.objects.filter(pk=run).update(schedule_id=schedule.pk)
    client = staff("view_schedule", "view_task", "view_workflow")
    link = f'<a href="{address(schedule)}">nightly</a>'

    assert link in client.get(reverse("admin:horsies_django_task_change", args=[task.pk])).content.decode()
    assert link in client.get(reverse("admin:horsies_django_workflow_change", args=[run])).content.decode()
    Schedule.objects.all().delete()
    assert client.get(reverse("admin:horsies_django_task_change", args=[task.pk])).status_code == 200


@pytest.mark.parametrize("schedule_id", ["x", "-1", "9" * 30, "٣"])
def test_filtering_tasks_by_an_invalid_schedule_id_finds_nothing(staff, schedule_id):
    Task.objects.create(task_name="shop.t", schedule_id=3)

    response = staff("view_task").get("/admin/horsies_django/task/", {"schedule_id": schedule_id})

    assert response.status_code == 200
    assert "shop.t" not in response.content.decode()


def test_the_page_needs_as_many_queries_for_20_runs_as_for_one(staff):
    schedule = make()
    client = staff("view_schedule", "view_task", "view_workflow", *PERMISSIONS)

    def queries():
        with CaptureQueriesContext(connection) as captured:
            page(client, schedule)
        return len(captured)

    Task.objects.create(task_name="shop.t", schedule_id=schedule.pk, started_at=Now())
    one = queries()
    for _ in range(20):
        Task.objects.create(task_name="shop.t", schedule_id=schedule.pk)

    assert queries() == one <= 9


def test_a_schedules_runs_are_read_from_an_index_without_a_sort(staff):
    schedule = make()
    client = staff("view_schedule", "view_task", "view_workflow")

    with CaptureQueriesContext(connection) as captured:
        page(client, schedule)

    statements = [each["sql"] for each in captured if '"schedule_id" = ' in each["sql"]]
    plans = []
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # the tables are empty
            cursor.execute("SET LOCAL enable_bitmapscan = off")
        for sql in statements:
            cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN '}{sql}")
            plans.append(str(cursor.fetchall()))
    assert len(plans) == 2
    assert "horsies_task_schedule" in plans[0]
    assert "horsies_workflow_schedule" in plans[1]
    assert not [plan for plan in plans if "Sort" in plan or "TEMP B-TREE" in plan]


# The overview.


@pytest.mark.slow
def test_the_overview_warns_of_schedules_that_are_late_or_broken_those_who_may_view_them(staff):
    make("late", timing="every:60")
    make("broken")
    Schedule.objects.filter(name="broken").update(enabled=False, disabled_by="TIMING")
    client = staff("view_task")

    def warnings():
        html = client.get("/admin/horsies_django/overview/").content.decode()
        texts = ("1 schedule is disabled because its timing is invalid", "no scheduler is running")
        return [text in html for text in texts]

    assert warnings() == [False, False]
    grant(client, "view_schedule")
    assert warnings() == [True, False]
    Schedule.objects.filter(name="late").update(next_run_at=NowPlus(-60))
    assert warnings() == [True, True]


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="the plan is PostgreSQL's")
def test_schedule_queries_use_an_index_with_10_000_schedules():
    Schedule.objects.bulk_create(
        Schedule(name=f"s{number}", task_name="t", timing="every:60", next_run_at=datetime(2126, 1, 1, tzinfo=UTC))
        for number in range(10_000)
    )
    Schedule.objects.filter(name__startswith="s99").update(enabled=False, disabled_by="TIMING", last_error="odd")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_schedules")

    rows = Schedule.objects.all()
    queries = [
        rows.filter(enabled=True, backend="default", next_run_at__isnull=False).order_by("next_run_at")[:5],
        rows.filter(enabled=False, disabled_by="TIMING").order_by("name")[:50],
        rows.exclude(last_error="").order_by("name")[:50],
        rows.filter(enabled=True).order_by("name")[:50],
    ]

    assert [one.explain() for one in queries if "Index" not in one.explain()] == []


def test_the_page_of_a_scheduled_run_shows_its_slot(staff):
    slot = {"horsies.scheduled_for": "2026-01-02T03:04:05+00:00"}
    run, other = (Task.objects.create(task_name="gone.task", metadata=metadata) for metadata in (slot, {"by": "us"}))
    client = staff("view_task")

    shown = [
        client.get(reverse("admin:horsies_django_task_change", args=[task.pk])).content.decode()
        for task in (run, other)
    ]

    assert ["field-page_scheduled_for" in html for html in shown] == [True, False]
    assert "2026-01-02 03:04:05" in shown[0]
