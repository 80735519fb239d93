"""The page of one task."""

import json
import re
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Value
from django.db.models.functions import Now
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.core.status import BeatRole
from horsies_django.models import Heartbeat, Task, TaskAttempt, Worker
from tests.admin.client import address, html_of, log_in, text_of
from tests.admin.test_workflows_admin import row
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.once]

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def staff(client):
    return log_in(client, "view_task")


def with_attempts(count, **values):
    """Create a task that has failed ``count`` times."""
    row = Task.objects.create(
        task_name="gone.task",
        attempt=count,
        claim=count,
        status="FAILED",
        failed_at=Now(),
        claimed_by_worker_id="w",
        result={"err": {"error_code": "DOWN", "message": "down", "data": None, "exception": {"traceback": "line 1"}}},
        **values,
    )
    base = timezone.now()
    attempts = [
        TaskAttempt(
            task=row,
            attempt=number,
            outcome="FAILED",
            due_at=base + timedelta(seconds=number),
            started_at=base + timedelta(seconds=number),
            finished_at=base + timedelta(seconds=number, milliseconds=250),
            error_code="DOWN",
            error_message=f"{SCRIPT} {number}",
            traceback=f"Traceback of {number}: {SCRIPT}",
            worker_id=f"w{number}",
            hostname="host",
        )
        for number in range(1, count + 1)
    ]
    TaskAttempt.objects.bulk_create(attempts, batch_size=1_000)
    return row


def running(handle, worker="w", **columns):
    with transaction.atomic():
        Task.objects.claim(worker, start=1)
    Task.objects.filter(pk=handle.id).update(**columns)
    return handle


@pytest.mark.slow
def test_the_page_shows_state_error_and_time_spent(staff, drain):
    handle = tasks.flaky.send("k", 9)
    drain()

    html = html_of(staff, handle)

    for text in ("Failed", "UNHANDLED_EXCEPTION", "Wait time", "Waiting for a worker"):
        assert text in html
    assert [f'id="horsies-attempt-{number}"' in html for number in (1, 2, 3)] == [True] * 3
    assert html.count('<rect class="horsies-bar-') >= 6


def test_the_error_is_first_with_its_traceback_open_and_earlier_ones_are_folded(staff):
    row = with_attempts(3, error_code="DOWN")
    latest = {"error_message": "down", "traceback": "line 1", "exception_class": "shop.Down"}
    TaskAttempt.objects.filter(task=row, attempt=3).update(**latest)
    row.result["err"]["exception"]["type"] = "shop.Down"
    row.save()

    html = html_of(staff, row)

    top = html[html.index('id="horsies-error"') : html.index('id="horsies-state"')]
    parts = (
        "shop.Down",
        "DOWN",
        "down",
        "Not retried: max_attempts is 1.",
        '<details id="horsies-traceback" open>',
        "line 1",
    )
    places = [top.index(part) for part in parts]
    assert places == sorted(places)
    assert 'data-horsies-copy-from="horsies-traceback-text"' in top
    assert html.count("line 1") == 1
    assert "at the top of the page" in html
    for number in (1, 2):
        assert f'<details id="horsies-traceback-{number}"><summary>Traceback of attempt {number}</summary>' in html
    assert html.count(" open>") == 1
    assert html.index("Attempt 3") < html.index("Traceback of attempt 2") < html.index("Traceback of attempt 1")
    assert "250 ms" in html


def spread(handle):
    """Give each instant of a task and its attempts a second of its own, for the page shows milliseconds."""
    times = {
        each: {name: value for name, value in vars(each).items() if isinstance(value, datetime)}
        for each in [Task.objects.get(pk=handle.id), *TaskAttempt.objects.filter(task=handle.id)]
    }
    instants = sorted({value for values in times.values() for value in values.values()})
    for each, values in times.items():
        seconds = {name: instants[0] + timedelta(seconds=instants.index(value)) for name, value in values.items()}
        type(each).objects.filter(pk=each.pk).update(**seconds)


@pytest.mark.slow
def test_no_instant_stands_twice_on_the_page(staff, drain):
    once, thrice = tasks.fail.send(), tasks.flaky.send("k", 9)
    drain()

    for handle in (once, thrice):
        spread(handle)
        visible = re.sub(r"<title>.*?</title>", "", html_of(staff, handle))
        instants = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", visible)
        assert len(instants) >= 3
        assert sorted(instants) == sorted(set(instants))


def test_fields_without_a_value_are_left_out(staff):
    html = html_of(staff, Task.objects.create(task_name="gone.task"))

    assert "<dd></dd>" not in html
    assert "<dd>-</dd>" not in html
    for name in (
        "started_at",
        "finished_at",
        "worker",
        "schedule",
        "workflow",
        "args",
        "result",
        "metadata",
        "timeout",
    ):
        assert not re.search(rf"field-(page_)?{name}\b", html)
    for part in ("error", "arguments", "result", "attempts", "beats"):
        assert f'id="horsies-{part}-heading"' not in html


def test_the_timeline_parts_waiting_from_running(staff):
    base = timezone.now() - timedelta(minutes=5)
    row = with_attempts(3, sent_at=base, enqueued_at=base + timedelta(seconds=230), error_code="DOWN")
    for number, due, start in ((1, 0, 10), (2, 60, 100), (3, 230, 240)):
        times = {"due_at": due, "started_at": start, "finished_at": start + 30}
        TaskAttempt.objects.filter(task=row, attempt=number).update(
            **{name: base + timedelta(seconds=seconds) for name, seconds in times.items()}
        )

    html = html_of(staff, row)

    legend = re.findall(r'horsies-key-(\w+)" aria-hidden="true"></span>([^<]+) <strong>([^<]+)</strong>', html)
    assert legend == [
        ("later", "Waiting until due", "2 min 0 s"),
        ("waits", "Waiting for a worker", "1 min 0 s"),
        ("fails", "Running, failed", "1 min 30 s"),
    ]
    assert re.findall(r'<rect class="horsies-bar-(\w+)"', html) == [
        "waits",
        "fails",
        "later",
        "waits",
        "fails",
        "later",
        "waits",
        "fails",
    ]


def test_a_single_attempt_has_no_timeline(staff, drain):
    handle = tasks.noop.send()
    drain()

    assert "horsies-steps-bar" not in html_of(staff, handle)


def test_the_page_shows_only_the_latest_of_many_attempts_and_says_so(staff):
    html = html_of(staff, with_attempts(120))

    assert html.count('class="horsies-attempt"') == 50
    assert 'id="horsies-attempt-120"' in html
    assert 'id="horsies-attempt-71"' in html
    assert 'id="horsies-attempt-70"' not in html
    assert "Only the latest 50 attempts are shown." in html


@pytest.mark.slow
def test_the_page_needs_as_many_queries_for_50_attempts_as_for_one(staff):
    counts = set()
    html_of(staff, with_attempts(1))  # so that Django's caches are filled
    for attempts in (1, 50):
        row = with_attempts(attempts)
        with CaptureQueriesContext(connection) as captured:
            html_of(staff, row)
        counts.add(len(captured))

    assert len(counts) == 1
    assert counts.pop() <= 15


@pytest.mark.parametrize("status", ["PENDING", "CLAIMED", "RUNNING"])
def test_the_page_of_an_unfinished_task_needs_few_queries(client, status):
    client = log_in(client, "view_task", "view_worker", "view_queue", "view_workflow")
    root = Workflow("one", [tasks.noop.node()()]).start()
    row = Task.objects.get(workflow_id=root.id)
    Worker.objects.register("w", "", "host", 1)
    Worker.objects.update(threads=1, async_slots=1)
    claimed_columns = {} if status == "PENDING" else {"claimed_at": Now(), "claimed_by_worker_id": "w", "claim": 1}
    started = {"started_at": Now()} if status == "RUNNING" else {}
    Task.objects.filter(pk=row.pk).update(status=status, attempt=1, **claimed_columns, **started)

    with CaptureQueriesContext(connection) as captured:
        html = html_of(client, row)

    assert len(captured) <= 15, [query["sql"][:150] for query in captured]
    assert "data-horsies-live" in html


def test_the_page_escapes_every_stored_value(client):
    client = log_in(client, "view_task", "view_worker", "view_heartbeat")
    row = with_attempts(2, args=[SCRIPT], kwargs={SCRIPT: SCRIPT}, metadata={SCRIPT: 1}, unique_key=SCRIPT)
    names = {"task_name": SCRIPT, "error_code": SCRIPT, "claimed_by_worker_id": SCRIPT, "queue_name": SCRIPT}
    progress = {"done": 1, "total": 2, "message": SCRIPT}
    Task.objects.filter(pk=row.pk).update(progress=progress, checkpoint=SCRIPT, result={"ok": SCRIPT}, **names)
    TaskAttempt.objects.update(hostname=SCRIPT, worker_id=SCRIPT)
    Worker.objects.register(SCRIPT, "", SCRIPT, 1)
    Heartbeat.objects.create(task_id=row.pk, role=BeatRole.RUNNER, sender_id=SCRIPT, hostname=SCRIPT, pid=1)

    html = html_of(client, row)

    assert SCRIPT not in html
    assert "onerror" not in html
    assert html.count("&lt;script&gt;") >= 12
    assert ' style="' not in html


@pytest.mark.slow
def test_long_texts_are_cut_on_every_page(admin_client):
    message, kind = "m" * 100_000, "shop.errors." + "K" * 100_000
    error = {"error_code": "DOWN", "message": message, "exception": {"type": kind}}
    failed = Task.objects.create(
        task_name=tasks.noop.module_path, status="FAILED", failed_at=Now(), result={"err": error}, error_code="DOWN"
    )
    held = {"claimed_at": Now(), "started_at": Now(), "claimed_by_worker_id": "w", "attempt": 1, "claim": 1}
    progress = {"done": 1, "total": 2, "message": message}
    running = Task.objects.create(task_name=tasks.noop.module_path, status="RUNNING", progress=progress, **held)
    workflow = row("w", {"status": "FAILED", "result": {"err": error}}, status="FAILED", error=error | {"node_id": "x"})

    tasks_list = reverse("admin:horsies_django_task_changelist")
    lists = [tasks_list, f"{tasks_list}?state=running"]
    of_workflow = reverse("admin:horsies_django_workflow_change", args=[workflow.id])
    for page in (address(failed), address(running), of_workflow, *lists):
        html = admin_client.get(page).content.decode()
        classes = re.findall(r'class="horsies-error-class">(.*?)<', html)
        bars = re.findall(r'<progress class="horsies-progress".*?</progress>(.*?)<', html, re.S)
        assert classes or bars, page
        assert max(map(len, classes + bars)) < 300, page
        assert "m" * 17_000 not in html, page


def test_large_values_are_truncated_and_can_be_downloaded_in_full(staff):
    value = {"rows": [{"number": number, "exact": 2**80 + number} for number in range(3_000)]}
    row = Task.objects.create(task_name="tests.jobs.tasks.echo", args=[value])

    html = html_of(staff, row)
    text = text_of(staff, row, "args")

    assert len(html) < 150_000
    assert '<details id="horsies-value-args"><summary>Show (' in html
    assert "The first 16.0" in html
    assert address(row, "download", "args") in html
    assert json.loads(text) == [value]
    assert str(2**80 + 2_999) in text


@pytest.mark.parametrize(
    ("name", "length", "is_linked"),
    [(tasks.noop.module_path, 4_000, False), (tasks.noop.module_path, 4_001, True), ("gone.task", 4_001, False)],
)
def test_a_message_that_the_page_cuts_can_be_downloaded_in_full(staff, name, length, is_linked):
    """The result of a task that is not registered is masked as a whole."""
    message = "m" * length
    error = {"error_code": "DOWN", "message": message}
    ended = {"status": "FAILED", "failed_at": Now(), "result": {"err": error}, "error_code": "DOWN"}
    row = Task.objects.create(task_name=name, **ended)

    html = html_of(staff, row)

    top = html[html.index('id="horsies-error"') : html.index('id="horsies-state"')]
    assert (message in top) == (length == 4_000)
    assert (address(row, "download", "result") in top) == is_linked
    assert (message in text_of(staff, row, "result")) == (name != "gone.task")


def test_a_download_is_a_plain_text_attachment(client, staff):
    row = Task.objects.create(task_name="gone.task", args=[1])

    response = staff.get(address(row, "download", "args"))

    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["Content-Disposition"] == f'attachment; filename="{row.pk}-args.txt"'
    assert staff.get(address(row, "download", "status")).status_code == 404
    row.pk = "0199" * 8
    assert staff.get(f"/admin/horsies_django/task/{row.pk}/download/args/").status_code == 302
    assert staff.get("/admin/horsies_django/task/nonsense/download/args/").status_code == 302


@pytest.mark.parametrize("page", ["change", "download"])
def test_page_and_download_need_the_view_permission(client, page):
    row = Task.objects.create(task_name="gone.task", args=["secret"])
    path = address(row, page, *(["args"] if page == "download" else []))

    assert client.get(path).status_code == 302
    assert log_in(client).get(path).status_code == 403
    assert log_in(client, "view_worker", "change_task").get(path).status_code in (200, 403)  # change implies view
    client.force_login(get_user_model().objects.create_superuser("root"))
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "columns",
    [
        {"args": None},
        {"args": {"a": 1}, "kwargs": [1]},
        {"args": 3, "kwargs": "text"},
        {"result": [1]},
        {"result": {"err": "text"}},
        {"result": {"err": {"exception": "text", "message": 3}}},
        {"result": {"err": {"exception": {"traceback": 3}, "message": {"a": 1}}}},
        {"result": 0.1, "metadata": 3, "checkpoint": [], "retry_policy": "text"},
        {"progress": ["odd"]},
        {"attempt": 3, "claim": 7, "claimed_at": Now()},
        {"timeout": 3e9},
    ],
)
def test_the_page_of_a_damaged_row_opens(staff, columns):
    values = {name: Value(None) if value is None else value for name, value in columns.items()}
    row = Task.objects.create(task_name="gone.task")
    if columns.get("args", 1) is None:
        from django.db.models import JSONField

        values["args"] = Value(None, JSONField())  # JSON's null
    for status in ("PENDING", "FAILED"):
        Task.objects.filter(pk=row.pk).update(status=status, failed_at=Now(), **values)
        html_of(staff, row)


def test_unreadable_json_is_reported_instead_of_shown(staff):
    row = Task.objects.create(task_name="tests.jobs.tasks.echo")
    depth = 900 if connection.vendor == "sqlite" else 4_000  # SQLite refuses a depth above 1,000
    deep = "[" * depth + "]" * depth
    huge = "1" + "0" * 5_000
    with connection.cursor() as cursor:
        cursor.execute("UPDATE horsies_tasks SET metadata = %s, checkpoint = %s", [deep, huge])

    html = html_of(staff, row)

    assert "ValueError. It is not shown." in html
    text_of(staff, row, "metadata")


def test_numbers_in_markup_are_not_localized(staff):
    row = with_attempts(2)
    TaskAttempt.objects.filter(attempt=2).update(attempt=1_234)

    with override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE="de"):
        html = html_of(staff, row)

    assert 'viewBox="0 0 1000 24"' in html
    assert 'id="horsies-attempt-1234"' in html


def test_times_are_in_the_users_time_zone_to_the_millisecond(staff):
    row = Task.objects.create(task_name="gone.task", good_until="2030-01-02T03:04:05.678Z")

    with timezone.override("Asia/Tokyo"):
        html = html_of(staff, row)

    assert "2030-01-02 12:04:05.678" in html
    assert "Asia/Tokyo" in html


def test_a_running_task_shows_progress_and_heartbeats(client):
    client = log_in(client, "view_task", "view_worker")
    handle = running(tasks.noop.send(), progress={"done": 4, "total": 10, "message": "rows"})
    Worker.objects.register("w", "", "host", 1)
    for _ in range(12):
        Heartbeat.objects.create(task_id=handle.id, role=BeatRole.RUNNER, sender_id="w", hostname="host", pid=1)

    html = html_of(client, handle)

    assert 'value="4" max="10"' in html
    assert html.count("<td>Runner</td>") == 10
    assert "/admin/horsies_django/worker/w/change/" in html


@pytest.mark.slow
def test_a_worker_is_linked_only_if_it_exists_and_the_user_may_view_it(client):
    handle = running(tasks.noop.send())
    Worker.objects.register("w", "", "host", 1)

    assert "/horsies_django/worker/" not in html_of(log_in(client, "view_task"), handle)
    assert "/horsies_django/worker/w/" in html_of(log_in(client, "view_task", "view_worker"), handle)
    Worker.objects.all().delete()
    assert "/horsies_django/worker/w/" not in html_of(client, handle)


def test_the_page_of_a_workflow_task_leads_to_workflow_and_node(client):
    root = Workflow("import all", [tasks.noop.node(node_id="fetch")()]).start()
    address = reverse("admin:horsies_django_workflow_change", args=[root.id])

    html = html_of(log_in(client, "view_task", "view_workflow"), Task.objects.get(workflow_id=root.id))

    assert f'<a href="{address}">import all</a>' in html
    assert f'<a href="{address}?node=0#node">fetch</a>' in html


def test_the_page_of_a_workflow_task_names_workflow_and_node_to_who_may_not_view_them(staff):
    root = Workflow("import all", [tasks.noop.node(node_id="fetch")()]).start()

    html = html_of(staff, Task.objects.get(workflow_id=root.id))

    assert "import all" in html
    assert "fetch" in html
    assert "/horsies_django/workflow/" not in html


def test_the_page_of_an_ended_task_does_not_poll(staff, drain):
    handle = tasks.noop.send()
    drain()

    assert "data-horsies-live" not in html_of(staff, handle)


def test_the_error_of_a_failed_task_is_shown_once_with_its_data_instead_of_the_result(staff, drain):
    handle = tasks.fail.send()
    drain()
    result = Task.objects.get(pk=handle.id).result
    message = result["err"]["message"]
    result["err"]["data"] = {"order": 77, "password": "geheim"}
    Task.objects.filter(pk=handle.id).update(result=result)

    html = html_of(staff, handle)

    assert f'<p class="horsies-message">{message}</p>' in html
    assert '<strong class="horsies-error-class">ValueError</strong>' in html
    visible = re.sub(r"<details.*?</details>", "", html, flags=re.S)  # the traceback ends with the message
    assert visible.count(message) == 1
    assert html.count("Traceback (most recent call last)") == 1
    assert "field-page_result" not in html
    top = html[html.index('id="horsies-error"') : html.index('id="horsies-state"')]
    assert "&quot;order&quot;: 77" in top
    assert "geheim" not in html


def test_options_that_say_nothing_are_left_out(staff):
    plain, urgent = (Task.objects.create(task_name="gone.task", priority=priority) for priority in (0, 5))
    elsewhere = Task.objects.create(task_name="gone.task", backend="gone")

    pages = [html_of(staff, task) for task in (plain, urgent, elsewhere)]

    assert ["field-priority" in html for html in pages] == [False, True, False]
    assert "field-page_backend" in pages[2]


def test_a_task_that_waits_for_a_retry_shows_its_latest_error(staff):
    row = with_attempts(2, retry_count=2)
    Task.objects.filter(pk=row.pk).update(
        status="PENDING", failed_at=None, result=None, error_code=None, deferred=True, next_retry_at=Now()
    )

    html = html_of(staff, row)

    top = html[html.index('id="horsies-error"') : html.index('id="horsies-state"')]
    assert "Error of attempt 2" in top
    assert '<code class="horsies-error-code">DOWN</code>' in top
    assert '<p class="horsies-message">&lt;script&gt;alert(1)&lt;/script&gt; 2</p>' in top
    assert "Traceback of 2: &lt;script" in top
    assert "Not retried" not in html


@pytest.mark.slow
def test_the_effective_retry_policy_is_described_in_words(staff, settings, capsys):
    stored = settings.TASKS["default"]
    with_defaults = {**stored, "OPTIONS": {**stored.get("OPTIONS", {}), "defaults": {"max_attempts": 4, "backoff": 90}}}
    any_error, jitter = "Retried on any error that another attempt may fix.", "Each varies at random by"
    only_down = "Retried on these errors: DOWN."
    calls = [
        (tasks.noop, (), "No retries: one attempt. A task that raises Retry is retried at most 2 times."),
        (tasks.noop.with_options(max_attempts=1), (), "No retries: one attempt."),
        (
            tasks.noop.with_options(max_attempts=3),
            (),
            f"Up to 3 attempts. {any_error} Delays before the retries: 2 s, 4 s. {jitter} up to a quarter.",
        ),
        (tasks.fixed, ("a",), f"Up to 3 attempts. {only_down} Delays before the retries: 1 s, 2 s."),
        (tasks.flaky, ("a", 1), f"Up to 3 attempts. {any_error} No delay before a retry."),
        (tasks.choosy, ("a",), f"Up to 5 attempts. {any_error} The task's own backoff function returns the delay"),
        (
            tasks.choosy.with_options(backoff=60),
            ("a",),
            f"Up to 5 attempts. {any_error} Delay before each retry: 60 s.",
        ),
    ]
    sent = [(task.send(*args), text) for task, args, text in calls]
    settings.TASKS = {**settings.TASKS, "default": with_defaults}
    sent.append((tasks.noop.send(), f"Up to 4 attempts. {any_error} Delay before each retry: 90 s."))
    sent.append((tasks.noop.with_options(max_attempts=1).send(), "No retries: one attempt."))
    settings.TASKS = {**settings.TASKS, "default": stored}

    for handle, text in sent:
        html = html_of(staff, handle)
        assert text in unescape(html)
        assert "intervals" not in html
        call_command("horsies_task", "show", str(handle.id))
        assert f"retries: {text}" in capsys.readouterr().out
