"""What a list shows above its rows: tabs of states with counts, chips of filters, orders; and the rows' two lines."""

import re
from datetime import timedelta
from html import unescape
from itertools import chain
from uuid import UUID

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import RetryPolicy
from horsies_django.admin.formatting import format_count
from horsies_django.core.ids import uuid7
from horsies_django.core.workflow_status import WorkflowStatus
from horsies_django.models import Task, TaskAttempt, Workflow, WorkflowTask
from horsies_django.ops.keyset import ordered, scan
from horsies_django.ops.metrics import Count, counts
from tests.admin import page_jobs
from tests.jobs import tasks

pytestmark = pytest.mark.django_db

LIST = "/admin/horsies_django/task/"
WORKFLOWS = "/admin/horsies_django/workflow/"
STEP = "horsies_django.workflows.engine_tasks.wake"
NOW = timezone.now()
ENDS = {"COMPLETED": "completed_at", "FAILED": "failed_at", "CANCELLED": "cancelled_at", "EXPIRED": "expired_at"}


def make(name="tests.admin.page_jobs.log_in", status="PENDING", **columns):
    ended = {ENDS[status]: NOW} if status in ENDS else {}
    return Task.objects.create(task_name=name, status=status, **(ended | columns))


def make_workflow(name, status, **columns):
    key = uuid7()
    return Workflow.objects.create(id=key, root_id=key, name=name, status=status, definition_key="", **columns)


def make_scheduled(count, **columns):
    """Create tasks that are due in the opposite order of their ids, two at a time; return them soonest first."""
    rows = [
        make(deferred=True, enqueued_at=NOW + timedelta(hours=10_000 - number // 2), **columns)
        for number in range(count)
    ]
    return sorted(rows, key=lambda row: (row.enqueued_at, row.pk))


def shown(client, address=LIST, **query):
    return client.get(address, query).context["cl"]


def tabs(client, address=LIST, **query):
    listed = shown(client, address, **query)
    return {str(tab.label): None if tab.count is None else format_count(tab.count) for tab in listed.state_tabs}


def walk(client, label, start=None, **query):
    """Return the keys of each page, following the links with these labels."""
    pages, address = [], start or "?" + "&".join(f"{name}={value}" for name, value in query.items())
    while address:
        listed = client.get(LIST + address).context["cl"]
        pages.append([row.pk for row in listed.result_list])
        address = next((link.url for link in listed.page_links if link.label in label), None)
        assert len(pages) < 100
    return pages


def cells(client, **query):
    """Return the text of each cell of the first row, by its class."""
    html = client.get(LIST, query).content.decode().partition("<tbody>")[2].partition("</tr>")[0]
    found = re.findall(r'class="field-(\w+)[^"]*">(.*?)</t[dh]>', html, re.S)
    return {name: unescape(re.sub("<[^>]*>", " ", text)) for name, text in found}


# Tabs.


@pytest.mark.slow
def test_each_tab_has_the_number_of_its_tasks_without_internal_steps(staff):
    for status in ENDS:
        make(status=status)
    make(STEP, status="COMPLETED")
    make(STEP, status="CANCELLED")
    make()
    make_scheduled(2)
    make(status="RUNNING", claimed_at=NOW, started_at=NOW, claimed_by_worker_id="w")
    client = staff("view_task")

    numbers = {"All": None, "Due": "1", "Scheduled": "2", "Retrying": "0", "Running": "1", "Completed": "1"}
    numbers |= {"Failed": "1", "Cancelled": "1", "Expired": "1"}
    assert tabs(client) == numbers
    assert tabs(client, kind="all") == numbers | {"Completed": "2", "Cancelled": "2"}
    assert tabs(client, kind="steps")["Completed"] == "1"
    assert tabs(client, state="active")["Active"] == "1"


@pytest.mark.slow  # walks 21 lists
def test_the_number_of_a_tab_is_that_of_its_list(staff):
    columns = {"claimed_at": NOW, "claimed_by_worker_id": "w", "claim": 1}
    for name in (tasks.noop.module_path, STEP):
        make(name)
        make(name, deferred=True, enqueued_at=NOW + timedelta(hours=1))
        make(name, deferred=True, enqueued_at=NOW + timedelta(hours=1), next_retry_at=NOW + timedelta(hours=1))
        make(name, good_until=NOW - timedelta(hours=1))
        make(name, status="CLAIMED", **columns)
        make(name, status="RUNNING", started_at=NOW, **columns)
    client = staff("view_task")

    for kind in ("tasks", "steps", "all"):
        for state in ("pending", "due", "scheduled", "retrying", "active", "claimed", "running"):
            listed = shown(client, kind=kind, state=state)
            number = next(tab.count for tab in listed.state_tabs if tab.is_current)
            assert number == Count(len(listed.result_list)), (kind, state)


def test_tabs_are_estimated_or_bounded_where_there_are_many_tasks(staff, monkeypatch):
    monkeypatch.setattr(counts, "MAX_COUNTED", 3)
    for _ in range(5):
        make(status="FAILED")
        make(STEP, status="FAILED")

    count = next(tab for tab in shown(staff("view_task")).state_tabs if str(tab.label) == "Failed")

    assert format_count(count.count) == "2+"
    assert count.exactness_note


@pytest.mark.parametrize("query", [{"q": "x"}, {"queue_name": "emails"}, {"sent": "hour"}])
def test_tabs_have_no_numbers_when_a_filter_or_the_search_narrows_the_list(staff, query):
    make(status="FAILED")

    assert set(tabs(staff("view_task"), **query).values()) == {None}


def test_a_tab_keeps_the_filters_and_drops_the_page_and_the_order(staff):
    listed = shown(staff("view_task"), queue_name="emails", state="scheduled", sort="due", before="x")

    assert {str(tab.label): tab.url for tab in listed.state_tabs}["Failed"] == "?queue_name=emails&state=failed"


def test_the_workflow_list_has_tabs_that_count_top_level_workflows(staff):
    root = make_workflow("a", "FAILED")
    node = WorkflowTask.objects.create(workflow=root, task_index=0, node_id="node", task_name="b")
    make_workflow("b", "FAILED", parent=node, depth=1)
    make_workflow("c", "COMPLETED")
    client = staff("view_workflow")

    assert tabs(client, WORKFLOWS) == {"All": None} | dict.fromkeys(map(str, WorkflowStatus.labels[1:]), "0") | {
        "Failed": "1",
        "Completed": "1",
    }
    assert tabs(client, WORKFLOWS, level="all")["Failed"] == "2"
    assert set(tabs(client, WORKFLOWS, name="a").values()) == {None}


# Chips.


def test_each_active_filter_has_a_chip_that_removes_it(staff):
    query = {"state": "failed", "queue_name": "emails", "sent": "hour", "q": "text", "sort": "oldest"}

    listed = shown(staff("view_task"), **query)

    assert {chip.words: chip.url for chip in listed.filter_chips} == {
        "Time sent: last hour": "?q=text&queue_name=emails&sort=oldest&state=failed",
        "Queue: emails": "?q=text&sent=hour&sort=oldest&state=failed",
        "Search: text": "?queue_name=emails&sent=hour&sort=oldest&state=failed",
    }
    assert listed.unfiltered_url == "?sort=oldest&state=failed"


@pytest.mark.slow
def test_defaults_and_empty_parameters_have_no_chip(staff):
    client = staff("view_task")

    assert shown(client, kind="tasks", queue_name="", state="failed").filter_chips == []
    assert [chip.words for chip in shown(client, kind="all", state="nonsense").filter_chips] == [
        "State: 'nonsense'",
        "Show: both",
    ]
    assert "Clear all" not in client.get(LIST).content.decode()


# Orders.


@pytest.mark.slow
def test_oldest_first_shows_each_task_once_in_order_and_back(staff):
    keys = [make(status="COMPLETED").pk for _ in range(120)]
    client = staff("view_task")

    pages = walk(client, ["Newer"], sort="oldest")
    second = shown(client, sort="oldest", after=keys[49])
    last = next(link.url for link in second.page_links if link.label == "Newer")
    back = walk(client, ["Older"], start=last)

    assert [*chain(*pages)] == keys
    assert [len(page) for page in pages] == [50, 50, 20]
    assert [*chain(*back[::-1])] == keys
    labels = [(link.label, link.rel) for link in client.get(LIST + last).context["cl"].page_links]
    assert labels == [("Oldest", ""), ("Older", "prev")]


@pytest.mark.slow
def test_a_search_from_the_oldest_says_how_far_it_came_and_continues(staff, monkeypatch):
    monkeypatch.setattr(scan, "CHUNKS", (2, 2))
    for _ in range(8):
        make()
    newest = make("tests.admin.page_jobs.needle")
    client = staff("view_task")

    first = shown(client, sort="oldest", q="needle")

    assert first.scanned_text.startswith("Searched rows in this order up to ")
    assert [(link.label, link.rel) for link in first.page_links] == [("Search newer rows", "next")]
    assert walk(client, ["Search newer rows", "Newer"], sort="oldest", q="needle")[-1] == [newest.pk]


@pytest.mark.parametrize("state", ["scheduled", "retrying"])
@pytest.mark.slow
def test_due_soonest_first_shows_each_task_once_in_order_and_back(staff, state):
    columns = {"next_retry_at": NOW, "attempt": 1} if state == "retrying" else {}
    rows = make_scheduled(121, **columns)
    make_scheduled(5, **({} if columns else {"next_retry_at": NOW}))
    make()
    client = staff("view_task")

    pages = walk(client, ["Next page"], state=state, sort="due")
    second = next(link.url for link in shown(client, state=state, sort="due").page_links if link.label == "Next page")
    third = next(link.url for link in client.get(LIST + second).context["cl"].page_links if link.label == "Next page")
    back = walk(client, ["Previous page"], start=third)

    assert [*chain(*pages)] == [row.pk for row in rows]
    assert back == pages[::-1]


@pytest.mark.slow
def test_in_the_order_of_the_due_time_a_page_reads_a_bounded_number_of_tasks(staff, monkeypatch):
    monkeypatch.setattr(ordered, "SIZES", (10, 20))
    rows = make_scheduled(80)
    few = [row.pk for row in (rows[0], rows[50], rows[79])]
    Task.objects.filter(pk__in=few).update(queue_name="few")
    client = staff("view_task")
    query = {"state": "scheduled", "sort": "due", "queue_name": "few"}

    pages = walk(client, ["Search on", "Next page"], **query)

    assert [*chain(*pages)] == few
    assert len(pages) == 3
    assert "Searched rows in this order up to" in client.get(LIST, query).content.decode()


@pytest.mark.slow
def test_in_the_order_of_the_due_time_an_argument_search_reads_a_limited_number_for_a_page(staff, monkeypatch):
    monkeypatch.setattr(scan, "MAX_FILTERED_BYTES", 1)
    rows = make_scheduled(220)
    for place in (0, 219):
        Task.objects.filter(pk=rows[place].pk).update(args=["needle"])
    query = {"state": "scheduled", "sort": "due", "q": "args.0:needle"}

    pages = walk(staff("view_task"), ["Search on", "Next page"], **query)

    assert pages[:2] == [[rows[0].pk], [rows[219].pk]]


def test_longest_running_first(staff):
    starts = (3, 9, 1, 5)
    rows = {
        age: make(status="RUNNING", claimed_at=NOW, started_at=NOW - timedelta(hours=age), claimed_by_worker_id="w").pk
        for age in starts
    }

    listed = shown(staff("view_task"), state="running", sort="longest")

    assert [row.pk for row in listed.result_list] == [rows[age] for age in sorted(starts, reverse=True)]
    assert [link.label for link in listed.page_links] == []


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("", ["newest", "oldest"]),
        ("failed", ["newest", "oldest"]),
        ("due", ["newest", "oldest"]),
        ("scheduled", ["newest", "oldest", "due"]),
        ("aggregating", ["newest", "oldest", "due"]),
        ("retrying", ["newest", "oldest", "due"]),
        ("running", ["longest", "newest", "oldest"]),
    ],
)
@pytest.mark.once
def test_a_list_offers_only_orders_that_an_index_has(staff, state, names):
    listed = shown(staff("view_task"), state=state, sort="longest")

    assert [order.name for order, _url in listed.sort_links] == names
    assert listed.sort_order.name == ("longest" if state == "running" else "newest")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("sort", ["oldest", "due", "nonsense", "\0", "-id"])
@pytest.mark.parametrize(
    "cursor",
    ["", "nonsense", "_", f"0001-01-01T00:00:00+00:00_{UUID(int=0)}", f"2026-01-01T00:00:00_{UUID(int=0)}", "\0"],
)
@pytest.mark.once
def test_a_malformed_order_or_cursor_shows_the_first_page(staff, sort, cursor):
    rows = make_scheduled(2)
    client = staff("view_task")

    for name in ("before", "after"):
        response = client.get(LIST, {"state": "scheduled", "sort": sort, name: cursor})
        assert {row.pk for row in response.context["cl"].result_list} == {row.pk for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    "state", ["", "due", "blocked", "scheduled", "retrying", "running", "claimed", "completed", "failed"]
)
def test_a_page_needs_at_most_14_statements_in_every_state(staff, state):
    make_scheduled(3, error_code="MINE", attempt=1)
    for status in ("PENDING", "RUNNING", "COMPLETED", "FAILED"):
        held = {"claimed_at": NOW, "started_at": NOW, "claimed_by_worker_id": "w"} if status == "RUNNING" else {}
        make(status=status, **held)
    client = staff("view_task", "view_workflow", "retry_task")

    for sort in ("", "due", "longest"):
        with CaptureQueriesContext(connection) as captured:
            client.get(LIST, {"state": state, "sort": sort})
        assert len(captured) <= 14


# Rows.


@pytest.mark.slow
def test_failed_and_retrying_rows_show_the_error(staff, drain):
    policy = RetryPolicy.fixed([3_600] * 2, auto_retry_for=["DOWN"], jitter=False)
    tasks.fixed.with_options(retry_policy=policy).send("again")
    tasks.fail.send("x" * 1_000)
    drain()
    client = staff("view_task")

    retrying, failed = cells(client, state="retrying"), cells(client, state="failed")

    assert "DOWN Down : again" in retrying["shown_call"]
    assert "attempt 1/3" in retrying["shown_run"]
    assert f"ValueError : {'x' * 240}" in failed["shown_call"]
    assert "x" * 241 not in failed["shown_call"]
    assert "UNHANDLED_EXCEPTION" not in failed["shown_call"]


def test_an_error_of_an_earlier_attempt_is_not_shown_for_another_outcome(staff):
    row = make(status="CANCELLED", error_code="TASK_CANCELLED", attempt=1)
    columns = {"outcome": "FAILED", "due_at": NOW, "started_at": NOW, "finished_at": NOW}
    TaskAttempt.objects.create(task=row, attempt=1, error_code="MINE", error_message="No luck", **columns)

    assert cells(staff("view_task"))["shown_call"].split() == ["TASK_CANCELLED"]


def test_a_message_on_a_row_is_escaped(staff):
    row = make(status="FAILED", error_code="MINE", attempt=1)
    columns = {"outcome": "FAILED", "due_at": NOW, "started_at": NOW, "finished_at": NOW}
    bad = "<script>alert(1)</script>"
    TaskAttempt.objects.create(
        task=row, attempt=1, error_code="MINE", error_message=bad, exception_class=bad, **columns
    )

    html = staff("view_task").get(LIST).content.decode()

    assert bad not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({}, "Due 5 h ago"),
        ({"good_until": NOW - timedelta(hours=9)}, "Overdue 9 h ago"),
        ({"deferred": True, "enqueued_at": NOW + timedelta(hours=7)}, "Scheduled in 7 h"),
        ({"deferred": True, "enqueued_at": NOW + timedelta(hours=7), "next_retry_at": NOW}, "Retrying in 7 h"),
        ({"status": "CLAIMED", "claimed_at": NOW - timedelta(hours=4)}, "Claimed 4 h ago"),
        ({"status": "RUNNING", "started_at": NOW - timedelta(hours=3), "claimed_at": NOW}, "Running 3 h ago"),
        ({"status": "COMPLETED", "completed_at": NOW - timedelta(hours=6)}, "Completed 6 h ago"),
        ({"status": "FAILED", "failed_at": NOW - timedelta(hours=8)}, "Failed 8 h ago"),
    ],
)
def test_a_row_shows_the_time_that_fits_its_state(staff, columns, state):
    make(**{"enqueued_at": NOW - timedelta(hours=5), **columns})

    assert " ".join(cells(staff("view_task"))["shown_state"].split()) == state


def test_a_row_shows_run_time_attempts_long_waits_queue_priority_and_worker(staff):
    started = NOW - timedelta(seconds=30)
    make(
        status="COMPLETED",
        enqueued_at=started - timedelta(seconds=20),
        started_at=started,
        attempt=2,
        max_retries=4,
        queue_name="emails",
        priority=5,
        claimed_by_worker_id="worker-1",
    )

    row = cells(staff("view_task"))

    assert " ".join(row["shown_run"].split()) == "run time 30 s attempt 2/5 waited 20 s"
    assert " ".join(row["shown_place"].split()) == "emails priority 5 worker-1"


def test_short_waits_and_priority_0_are_left_out(staff):
    make(status="COMPLETED", enqueued_at=NOW, started_at=NOW + timedelta(milliseconds=5), attempt=1)

    row = cells(staff("view_task"))

    assert "waited" not in row["shown_run"]
    assert row["shown_place"].split() == ["default"]


@pytest.mark.slow
def test_a_live_task_shows_its_progress(staff):
    progress = {"done": 3, "total": 9, "message": "rows"}
    make(status="RUNNING", claimed_at=NOW, started_at=NOW, progress=progress)
    make(status="COMPLETED", progress=progress)
    client = staff("view_task")

    assert "3/9 rows" in cells(client, state="running")["shown_call"]
    assert "3/9 rows" not in cells(client, state="completed")["shown_call"]


def test_a_row_has_a_button_that_copies_its_id(staff):
    key = page_jobs.log_in.send("ann", "x").id

    assert f'data-horsies-copy="{key}"' in staff("view_task").get(LIST).content.decode()


def test_a_workflow_row_shows_its_state_with_its_time_the_error_and_the_run_time(staff):
    started = NOW - timedelta(hours=3)
    columns = {"started_at": started, "completed_at": started + timedelta(seconds=70), "unique_key": "k"}
    make_workflow("import", "FAILED", error={"error_code": "MINE"}, node_count=4, **columns)
    Workflow.objects.update(sent_at=F("started_at"))

    html = staff("view_workflow").get(WORKFLOWS).content.decode().partition("<tbody>")[2]

    for text in ("3 h ago", "import", "k", "MINE", "1 min 10 s", "4 of 4"):
        assert text in html, text
