"""The list of tasks: its paging, filters, searches, columns and masking."""

import time
from datetime import timedelta
from itertools import chain
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django.core.ids import uuid7s
from horsies_django.core.status import TaskStatus
from horsies_django.models import Task, Worker
from horsies_django.ops.keyset import scan
from horsies_django.ops.keyset.keys import id_at
from tests.admin import page_jobs
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/horsies_django/task/"
NOW = timezone.now()
LONG_AGO = NOW - timedelta(days=3)
ENDS = {"COMPLETED": "completed_at", "FAILED": "failed_at", "CANCELLED": "cancelled_at", "EXPIRED": "expired_at"}


def limit_scan(monkeypatch, *rows):
    """Let a page scan only these numbers of rows."""
    monkeypatch.setattr(scan, "CHUNKS", rows)


def make(name="tests.admin.page_jobs.log_in", status="PENDING", **columns):
    ended = {ENDS[status]: NOW} if status in ENDS else {}
    return Task.objects.create(task_name=name, status=status, **ended, **columns)


def make_many(count, **columns):
    """Create ``count`` tasks, and return them oldest first."""
    status = columns.setdefault("status", "COMPLETED")
    ended = {ENDS[status]: NOW} if status in ENDS else {}
    rows = [Task(id=key, task_name="tests.admin.page_jobs.log_in", **ended, **columns) for key in uuid7s(count)]
    Task.objects.bulk_create(rows, batch_size=400)
    return rows


def shown(client, **query):
    return client.get(LIST, query).context["cl"]


def found(client, **query):
    return {row.pk for row in shown(client, **query).result_list}


def walk(client, link, **query):
    """Return the keys of each page, from the first page on."""
    pages, address = [], "?" + "&".join(f"{name}={value}" for name, value in query.items())
    while address:
        listed = client.get(LIST + address).context["cl"]
        pages.append([row.pk for row in listed.result_list])
        address = getattr(listed, link)
        assert len(pages) < 100
    return pages


# Pages.


@pytest.mark.slow
def test_paging_either_way_shows_each_task_once_newest_first(staff):
    rows = make_many(120)
    client = staff("view_task")
    newest_first = [row.pk for row in reversed(rows)]

    older_pages = walk(client, "older_url")
    newer_pages = walk(client, "newer_url", after=UUID(int=0))

    assert [len(page) for page in older_pages] == [50, 50, 20]
    assert [*chain(*older_pages)] == newest_first
    assert [*chain(*reversed(newer_pages))] == newest_first


@pytest.mark.slow
def test_new_tasks_do_not_shift_older_pages(staff):
    rows = make_many(120)
    client = staff("view_task")
    older = shown(client).older_url

    make_many(30)

    listed = client.get(LIST + older).context["cl"]
    assert [row.pk for row in listed.result_list] == [row.pk for row in reversed(rows[20:70])]


@pytest.mark.parametrize("status", ["", pytest.param("FAILED", marks=pytest.mark.slow)])
@pytest.mark.parametrize("link", ["older_url", "newer_url"])
def test_a_page_scans_a_bounded_range_and_the_next_page_continues(staff, monkeypatch, status, link):
    limit_scan(monkeypatch, 10, 30)
    few = make_many(3, status="FAILED", queue_name="few")
    make_many(100, status="FAILED")
    few += make_many(3, status="FAILED", queue_name="few")
    client = staff("view_task")
    query = {"queue_name": "few", **({"state": status.lower()} if status else {})}
    start = {"after": UUID(int=0)} if link == "newer_url" else {}

    pages = walk(client, link, **query, **start)
    html = client.get(LIST, query | start).content.decode()

    assert sorted([*chain(*pages)]) == [row.pk for row in few]
    assert len(pages) >= 3
    assert "Searched " in html
    assert ("Search newer rows" if start else "Search older rows") in html


@pytest.mark.slow
def test_a_page_looks_through_the_same_number_of_tasks_however_long_that_takes(staff, monkeypatch):
    limit_scan(monkeypatch, 10, 30)
    few = make_many(3, queue_name="few")
    make_many(100)
    client = staff("view_task")

    def slowly(execute, *statement):
        time.sleep(0.01)
        return execute(*statement)

    pages = walk(client, "older_url", queue_name="few")
    with connection.execute_wrapper(slowly):
        slow = client.get(LIST, {"queue_name": "few"})

    assert [len(page) for page in pages] == [0, 0, 3]
    assert [*chain(*pages)] == [row.pk for row in reversed(few)]
    assert slow.context["cl"].older_url == shown(client, queue_name="few").older_url
    assert "Searched back to" in slow.content.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "least_pages"),
    [("MAX_FILTERED", 30, 14), ("MAX_FILTERED_BYTES", 400_000, 2), ("MAX_FILTER_SECONDS", 1e-9, 2)],
)
def test_an_argument_search_reads_limited_rows_and_bytes_in_limited_time_for_a_page(
    staff, monkeypatch, limit, value, least_pages
):
    monkeypatch.setattr(scan, limit, value)
    oldest, *_rest = make_many(420, args=["x" * 1_000])
    make_many(100, queue_name="others")
    Task.objects.filter(pk=oldest.pk).update(args=["needle"])
    client = staff("view_task")
    query = {"q": "args.0:needle", "queue_name": "default"}

    pages = walk(client, "older_url", **query)
    html = client.get(LIST, query).content.decode()

    assert [*chain(*pages)] == [oldest.pk]
    assert pages[0] == []
    assert len(pages) >= least_pages
    assert "Searched back to" in html
    assert "Search older rows" in html


@pytest.mark.slow
def test_old_pending_tasks_are_found_behind_many_newer_tasks(staff, monkeypatch):
    limit_scan(monkeypatch, 10, 30)
    stuck = make("jobs.stuck", queue_name="unserved", enqueued_at=LONG_AGO)
    make_many(100)
    client = staff("view_task")

    for query in (
        {"state": "due"},
        {"state": "pending"},
        {"trouble": "late"},
        {"queue_name": "unserved", "state": "due"},
    ):
        assert found(client, **query) == {stuck.pk}
        assert not shown(client, **query).older_url


@pytest.mark.slow
def test_the_task_of_an_unserved_queue_is_found_among_many_due_tasks(staff, monkeypatch):
    limit_scan(monkeypatch, 10, 30)
    monkeypatch.setattr(scan, "MAX_INDEX_ROWS", 20)
    stuck = make("jobs.stuck", queue_name="unserved", enqueued_at=LONG_AGO)
    due = make_many(100, status="PENDING")
    client = staff("view_task")

    assert found(client, state="due", queue_name="unserved") == {stuck.pk}
    assert sorted([*chain(*walk(client, "older_url", state="due"))]) == sorted([stuck.pk, *(row.pk for row in due)])


@pytest.mark.slow
def test_the_list_needs_as_many_queries_for_50_tasks_as_for_one(staff):
    client = staff("view_task", "view_workflow", "retry_task")
    make_many(1, status="FAILED", workflow_id=UUID(int=7), claimed_by_worker_id="w")
    client.get(LIST)

    with CaptureQueriesContext(connection) as of_one:
        client.get(LIST)
    make_many(60, status="FAILED", workflow_id=UUID(int=7), claimed_by_worker_id="w", progress={"done": 1})
    with CaptureQueriesContext(connection) as of_fifty:
        client.get(LIST)

    assert len(of_one) - 1 <= len(of_fifty) <= 14  # a page that is not full scans further, with one more query
    counts = [query["sql"] for query in of_fifty if "COUNT(" in query["sql"] and "horsies_tasks" in query["sql"]]
    assert len(counts) == 2  # for the tabs: one up to a bound, and one of the held tasks
    assert "LIMIT 10001" in counts[0]
    assert not any('"result"' in query["sql"] or '"traceback"' in query["sql"] for query in of_fifty)


@pytest.mark.parametrize(
    "query",
    [
        {"before": "nonsense"},
        {"after": "\0"},
        {"before": "ffffffff-ffff-ffff-ffff-ffffffffffff", "after": "00000000-0000-0000-0000-000000000000"},
        {"after": "ffffffff-ffff-ffff-ffff-ffffffffffff"},
        {"before": "00000000-0000-0000-0000-000000000000"},
        {"state": "'"},
        {"kind": "x"},
        {"trouble": "y"},
        {"sent": "aeon"},
        {"sent_from": "yesterday", "sent_to": "9999-99-99"},
        {"sent_from": "0001-01-01", "sent_to": "9999-12-31T23:59"},
        {"sent_from": "1970-01-01", "sent_to": "9998-12-31"},
        {"priority": "9" * 40},
        {"queue_name": "\0"},
        {"worker": "\0x"},
        {"q": "\0"},
        {"q": "args.x:%_\\'\"\0"},
        {"q": "error:"},
        {"p": "7"},
        {"p": "x"},
        {"o": "3.-x"},
        {"all": ""},
    ],
)
@pytest.mark.once
def test_a_malformed_query_string_does_not_break_the_list(staff, query):
    make()

    response = staff("view_task").get(LIST, query, follow=True)

    assert response.status_code == 200


def test_an_empty_list_says_so(staff):
    html = staff("view_task").get(LIST).content.decode()

    assert "0 tasks on this page" in html


# Filters.

FILTERS = {
    "failed": {"state": "failed"},
    "active": {"state": "active"},
    "scheduled": {"state": "scheduled"},
    "retrying": {"state": "retrying"},
    "due": {"state": "due"},
    "completed": {"state": "completed"},
    "queue": {"queue_name": "emails"},
    "high": {"priority": "high"},
    "normal": {"priority": "normal"},
    "low": {"priority": "low"},
    "task": {"task_name": "jobs.two"},
    "worker": {"worker": "host-1"},
    "code": {"error_code": "MINE"},
    "retried": {"trouble": "retried"},
    "late": {"trouble": "late"},
    "overdue": {"trouble": "overdue"},
    "steps": {"kind": "steps"},
    "all": {"kind": "all"},
    "hour": {"sent": "hour"},
    "week": {"sent": "week"},
    "range": dict.fromkeys(("sent_from", "sent_to"), f"{timezone.localtime(LONG_AGO):%Y-%m-%d}"),
}
SEARCHES = {
    "none": "",
    "name": "jobs.t",
    "args": 'args.word:"Ä NEEDLE 100%_"',
    "not args": 'args.word:"ä needle 100xx"',
    "error": "error:NO luck",
    "error code": "error:mine",
}


def old(moment):
    return UUID(int=id_at(moment).int | 0x7 << 76 | 0b10 << 62 | 5)


@pytest.fixture
def kinds(transactional_db):
    """Create a task of each kind; return, by name, its key and the filters and searches that find it."""
    err = {"err": {"error_code": "MINE", "message": "No luck today", "data": None}}
    base = {"week", "normal", "all"}
    now = base | {"hour"}
    rows = {
        "plain": (make(kwargs={"word": "ä needle 100%_"}), now | {"due"}, {"args"}),
        "late": (make("jobs.two", enqueued_at=NOW - timedelta(hours=1)), now | {"due", "late", "task"}, {"name"}),
        "past": (make(good_until=NOW - timedelta(minutes=1)), now | {"overdue"}, set()),
        "later": (make(deferred=True, enqueued_at=NOW + timedelta(days=1)), now | {"scheduled"}, set()),
        "again": (
            make(
                deferred=True,
                enqueued_at=NOW + timedelta(days=1),
                next_retry_at=NOW,
                attempt=1,
                retry_count=1,
                error_code="MINE",
            ),
            now | {"retrying", "retried", "code"},
            {"error code"},
        ),
        "runs": (
            make(status="RUNNING", claimed_by_worker_id="host-1", claimed_at=NOW, started_at=NOW, claim=1, attempt=1),
            now | {"active", "worker"},
            set(),
        ),
        "failed": (
            make(status="FAILED", error_code="MINE", result=err, attempt=2, claimed_by_worker_id="host-1"),
            now | {"failed", "code", "retried", "worker"},
            {"error", "error code"},
        ),
        "emails": (
            make(status="COMPLETED", queue_name="emails", priority=5, result={"ok": "no luck"}),
            (now | {"completed", "queue", "high"}) - {"normal"},
            set(),
        ),
        "low": (
            make(status="CANCELLED", priority=-1, error_code="TASK_CANCELLED"),
            (now | {"low"}) - {"normal"},
            set(),
        ),
        "old": (
            make(id=old(LONG_AGO), sent_at=LONG_AGO, status="COMPLETED"),
            base | {"completed", "range"},
            set(),
        ),
        "step": (make("horsies_django.workflows.engine_tasks.wake", status="COMPLETED"), {"steps", "all"}, set()),
    }
    return {name: (row.pk, filters | {""}, searches | {"none"}) for name, (row, filters, searches) in rows.items()}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_each_filter_with_each_search_finds_the_right_rows(staff, kinds, search):
    client = staff("view_task")
    visible_by_default = {name: kind for name, kind in kinds.items() if name != "step"}

    for name, query in {"": {}, **FILTERS}.items():
        listed = kinds if name in ("steps", "all") else visible_by_default
        expected = {key for key, (_, filters, searches) in listed.items() if name in filters and search in searches}
        rows = found(client, **query, **({"q": SEARCHES[search]} if SEARCHES[search] else {}))
        assert {key for key, (pk, *_) in kinds.items() if pk in rows} == expected, (name, search)


@pytest.mark.slow
def test_filters_are_combined(staff, kinds):
    client = staff("view_task")

    failed = kinds["failed"][0]
    assert found(client, state="failed", worker="host-1", trouble="retried", sent="hour") == {failed}
    assert found(client, state="failed", queue_name="emails") == set()


@pytest.mark.slow
def test_searching_an_id_finds_a_task_of_any_kind(staff, kinds):
    client = staff("view_task")

    for pk, *_ in kinds.values():
        assert found(client, q=str(pk)) == found(client, q=f" {pk.hex} ") == {pk}


@pytest.mark.parametrize("status", TaskStatus.values)
@pytest.mark.once
def test_the_filter_by_state_has_each_status_too(staff, status):
    for each in TaskStatus.values:
        columns = {"claimed_at": NOW, "claimed_by_worker_id": "w"} if each in ("CLAIMED", "RUNNING") else {}
        make(status=each, **columns, **({"started_at": NOW} if each == "RUNNING" else {}))
    client = staff("view_task")

    assert found(client, state=status.lower()) == set(Task.objects.filter(status=status).values_list("pk", flat=True))


@pytest.mark.slow
def test_the_state_selects_its_tab(staff):
    client = staff("view_task")

    selected = {
        state: [str(tab.label) for tab in shown(client, state=state).state_tabs if tab.is_current]
        for state in ("", "failed", "due", "nonsense")
    }

    assert selected == {"": ["All"], "failed": ["Failed"], "due": ["Due"], "nonsense": []}
    html = client.get(LIST + "?state=failed").content.decode()
    assert html.count('<a href="?state=failed" aria-current="page">Failed') == 1
    assert 'data-filter-title="state"' not in html


def test_filters_get_their_choices_without_a_distinct_query(staff, kinds):
    Worker.objects.register("host-1", "w", "host", 1)
    with CaptureQueriesContext(connection) as captured:
        html = staff("view_task").get(LIST).content.decode()

    assert "?worker=host-1" in html
    assert '<option value="UNHANDLED_EXCEPTION">' in html
    assert '<option value="DOWN">' in html  # an exception map in tests.jobs.tasks names it
    assert not any("DISTINCT" in query["sql"] for query in captured)


# Columns.


@pytest.mark.slow
def test_a_row_shows_its_state_and_its_times(staff, drain):
    tasks.fail.send()
    drain()
    tasks.noop.schedule(3600)
    with transaction.atomic():
        tasks.noop.send()
        Task.objects.claim("a-worker-of-a-long-name", start=1)

    html = staff("view_task").get(LIST).content.decode()

    for text in ("Failed", "Scheduled", "Running", "in 60 min", "so far", "?worker=a-worker-of-a-long-name", "1/1"):
        assert text in html, text


@pytest.mark.slow
def test_a_skip_link_leads_keyboard_users_past_the_filters(staff):
    client = staff("view_task")
    skip = '<a class="horsies-skip" href="#result_list">Skip to the results</a>'
    assert skip not in client.get(LIST).content.decode()  # the list has no rows

    make()

    html = client.get(LIST).content.decode()
    assert html.index(skip) < html.index('id="changelist"') < html.index('id="result_list"')


def test_a_workflow_id_is_no_link_for_users_who_may_not_view_workflows(staff):
    make(workflow_id=UUID(int=7))

    html = staff("view_task").get(LIST).content.decode()

    assert f'title="{UUID(int=7)}"' in html
    assert "horsies_django/workflow/" not in html


@pytest.mark.slow
def test_the_list_escapes_stored_and_queried_values(staff):
    bad = "<script>alert(1)</script>"
    make(bad, queue_name=bad, error_code=bad, claimed_by_worker_id=bad, progress={"done": 1, "message": bad})
    client = staff("view_task")

    for query in (
        {},
        {"q": bad},
        {"queue_name": bad},
        {"worker": bad},
        {"sent_from": bad},
        {"before": bad},
        {"x": bad},
    ):
        html = client.get(LIST, query, follow=True).content.decode()
        assert bad not in html
        assert "style=" not in html
        assert "onclick" not in html


# Masking.


@pytest.mark.slow
def test_page_boundaries_do_not_reveal_matches_in_masked_values(staff):
    unmasked = page_jobs.log_in.send("geheim", "x").id
    rows = page_jobs.log_in.send_many({"user": "ann", "password": "geheim"} for _ in range(60))
    client = staff("view_task")

    listed = shown(client, q="args.user:geheim")
    assert [row.pk for row in listed.result_list] == [unmasked]
    assert not listed.older_url
    for cursor in ({"before": rows[10].id}, {"after": rows[10].id}, {"after": rows[59].id}):
        by_secret, by_nothing = (shown(client, q=f"args.password:{text}", **cursor) for text in ("geheim", "nothing"))
        assert by_secret.newer_url == by_nothing.newer_url.replace("nothing", "geheim")
        assert by_secret.older_url == by_nothing.older_url.replace("nothing", "geheim")


def test_an_action_on_selected_tasks_does_not_reveal_masked_values(staff):
    masked = page_jobs.log_in.send("ann", "geheim").id

    staff("view_task", "cancel_task").post(
        f"{LIST}?q=args.password:nothing", {"action": "cancel", "_selected_action": [str(masked)]}
    )

    assert Task.objects.get(pk=masked).status == "CANCELLED"  # just as if the search had found it


@pytest.mark.slow
def test_an_action_on_all_matching_tasks_ignores_matches_in_masked_values(staff):
    masked, plain = page_jobs.log_in.send("ann", "geheim").id, page_jobs.log_in.send("geheim", "x").id
    client = staff("view_task", "cancel_task")
    every = {"action": "cancel", "_selected_action": [str(masked)], "select_across": "1"}

    confirmation = client.post(f"{LIST}?q=args.user:geheim", every)
    client.post(f"{LIST}?q=args.user:geheim", every | dict(confirmation.context["hidden"]) | {"confirmed": "1"})

    assert confirmation.context["tally"].by_status.total() == 1
    assert Task.objects.get(pk=plain).status == "CANCELLED"
    assert Task.objects.get(pk=masked).status == "PENDING"


def test_the_title_of_the_list_names_its_state_and_filters(admin_client):
    html = admin_client.get(f"{LIST}?state=failed&queue_name=emails&q=%3Cb%3E").content.decode()

    title = html[html.index("<title>") : html.index("</title>")]
    assert title.startswith("<title>Failed, Queue: emails, Search: &lt;b&gt; | Tasks")
