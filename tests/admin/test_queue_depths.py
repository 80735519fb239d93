"""The depths of queues, which a bounded number of queries and rows yields."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task
from horsies_django.models import depths as module
from horsies_django.models.depths import Depth, depths
from tests.jobs import tasks
from tests.ops.inspector.factories import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


BLOCKED = {"deferred": True, "blocked": True, "limit_key": "a"}


def some(number, **columns):
    Task.objects.bulk_create(Task(task_name="t", **columns) for _ in range(number))


def ago(seconds):
    return datetime.now(UTC) - timedelta(seconds=seconds)


def test_depths_are_empty_when_no_task_is_due():
    tasks.noop.schedule(60)

    assert depths(Task.objects.all()) == {}


def test_depths_count_sync_and_async_tasks_together():
    tasks.noop.send_many({} for _ in range(3))
    tasks.awrite.send("a")

    assert depths(Task.objects.all())["default"].due == 4
    assert (Depth(1, True, 5.0) + Depth(2, False, None)) == Depth(3, True, 5.0)


def test_a_task_that_has_become_due_counts_before_a_worker_moves_it_unless_its_deadline_has_passed(monkeypatch):
    for columns in ({}, {"good_until": NowPlus(-10)}, {"enqueued_at": NowPlus(60)}):
        make("pending", **{"deferred": True, "enqueued_at": NowPlus(-90), **columns})

    found = depths(Task.objects.all())

    assert (found["default"].due, found["default"].is_more) == (1, False)
    assert found["default"].waits == pytest.approx(90, abs=60)
    assert depths(Task.objects.all(), "default").of("default").due == 1
    assert depths(Task.objects.all(), "other").of("other").due == 0
    monkeypatch.setattr(module, "MAX_LATE", 1)
    make("pending", deferred=True, enqueued_at=NowPlus(-80))
    assert (depths(Task.objects.all())["default"].due, depths(Task.objects.all())["default"].is_more) == (1, True)


@pytest.mark.slow
def test_a_deep_queue_is_counted_by_the_claim_index_up_to_the_bound():
    tasks.noop.with_options(queue_name="deep").send_many({} for _ in range(10_000))
    Task.objects.filter(pk__in=Task.objects.values("pk")[:5_000]).update(
        status="COMPLETED", completed_at="2026-01-01T00:00Z"
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks" if connection.vendor == "postgresql" else "ANALYZE")

    with CaptureQueriesContext(connection) as captured:
        found = depths(Task.objects.all())

    assert found["deep"].due == 1_000
    assert found["deep"].is_more
    assert len(captured) == 5
    for query, index in zip(captured, [*["claim"] * 3, "deferred", "blocked"], strict=True):
        plan = _plan(query["sql"])
        assert not re.search(r"Seq Scan on horsies_tasks|SCAN horsies_tasks(?! USING)", plan), plan
        assert f"horsies_task_{index}" in plan, plan


def test_beyond_the_bound_known_queues_are_counted_and_the_oldest_task_is_found(monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUES", 3)
    for name in ("a", "b", "c", "d", "known", "z"):
        tasks.noop.with_options(queue_name=name).send()
    tasks.awrite.with_options(queue_name="known").send("x")
    tasks.noop.with_options(queue_name="z", priority=5).send()
    Task.objects.filter(queue_name="z", priority=0).update(enqueued_at=NowPlus(-600))

    with CaptureQueriesContext(connection) as captured:
        found = depths(Task.objects.all(), also=["known", "idle", "a"])

    assert {name: depth.due for name, depth in found.items()} == {"a": 1, "b": 1, "c": 1, "idle": 0, "known": 2}
    assert found.is_more
    assert found.waits == pytest.approx(600, abs=60)
    assert found.is_searched
    assert found.of("z") == Depth(0, True), "it was not counted"
    assert found.of("idle") == Depth()
    assert len(captured) == 4


def test_where_many_queues_have_tasks_fewer_of_each_are_counted(monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTED_OF_ALL", 12)
    for name, number in (("a", 2), ("b", 3), ("c", 5)):
        tasks.noop.with_options(queue_name=name).send_many({} for _ in range(number))

    found = depths(Task.objects.all())

    assert {name: (depth.due, depth.is_more) for name, depth in found.items()} == {
        "a": (2, False), "b": (3, False), "c": (4, True),
    }  # fmt: skip
    assert depths(Task.objects.all(), only="c")["c"].due == 5


@pytest.mark.slow
def test_the_search_for_the_oldest_task_reads_at_most_a_thousand_queues():
    names = [f"queue-{number:04}" for number in range(1_500)]
    Task.objects.bulk_create(Task(task_name="t", queue_name=name) for name in [*names, "real"])
    Task.objects.filter(queue_name="queue-0900").update(enqueued_at=NowPlus(-700))
    Task.objects.filter(queue_name="queue-1400").update(enqueued_at=NowPlus(-9_000))
    Task.objects.filter(queue_name="real").update(enqueued_at=NowPlus(-600))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks" if connection.vendor == "postgresql" else "ANALYZE")

    with CaptureQueriesContext(connection) as captured:
        found = depths(Task.objects.all(), also=["real"])

    assert found.waits == pytest.approx(700, abs=60)
    assert found["real"].waits == pytest.approx(600, abs=60)
    assert not found.is_searched
    assert len(found) == 101
    if connection.vendor == "postgresql":
        read = [_rows_read(query["sql"]) for query in captured]
        assert max(read) <= 5 * (1_000 + 2), read  # a read each for the name and the priority, three for the first task


def test_a_task_that_a_limit_released_is_due_from_its_release():
    some(2, released_at=ago(10), enqueued_at=ago(2_000))
    assert depths(Task.objects.all())["default"].waits == pytest.approx(10, abs=60)

    some(1, enqueued_at=ago(600))
    some(1, queue_name="later", priority=-1, deferred=True, enqueued_at=ago(300))
    found = depths(Task.objects.all())

    assert (found["default"].due, found["later"].due) == (3, 1)
    assert found["default"].waits == pytest.approx(600, abs=60)
    assert found["later"].waits == pytest.approx(300, abs=60)
    assert found.waits == found["default"].waits


@pytest.mark.parametrize("only", ["default", None])
def test_behind_more_tasks_than_are_counted_the_oldest_of_each_priority_is_found(monkeypatch, only):
    monkeypatch.setattr(module, "MAX_COUNTED", 3)
    some(5, enqueued_at=ago(600))
    some(5, priority=-1, enqueued_at=ago(60))
    some(2, priority=-2, enqueued_at=ago(3_600))
    some(1, queue_name="other", enqueued_at=ago(9))

    found = depths(Task.objects.all(), only)

    assert found.waits == found["default"].waits == pytest.approx(3_600, abs=60)
    assert not found.is_searched, "a limit may have released older ones, further behind"
    assert found["default"].as_json()["oldest_waits_is_at_least"]


def test_no_statement_grows_with_the_number_of_deep_queues(monkeypatch):
    # One had a part for each queue: PostgreSQL compiled those of 50 to machine code, which took two seconds.
    monkeypatch.setattr(module, "MAX_COUNTED", 1)
    sizes = []
    for name in ("a", "b"):
        some(2, queue_name=name)
        with CaptureQueriesContext(connection) as captured:
            assert depths(Task.objects.all())[name].is_more
        sizes.append([len(query["sql"]) for query in captured])

    one, two = sizes

    assert len(one) == len(two)
    assert max(more - less for less, more in zip(one, two, strict=True)) <= len(', "b"')


def test_a_task_that_waits_behind_released_ones_of_its_priority_is_found(monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTED", 3)
    some(5, released_at=ago(10), enqueued_at=ago(10_000))
    some(1, enqueued_at=ago(3_600))

    assert depths(Task.objects.all())["default"].waits == pytest.approx(3_600, abs=60)


def test_of_many_late_tasks_those_of_one_queue_are_counted_and_others_may_have_more(monkeypatch):
    monkeypatch.setattr(module, "MAX_LATE", 3)
    some(4, deferred=True, enqueued_at=ago(3_000))
    some(2, queue_name="emails", deferred=True, enqueued_at=ago(1_200))
    tasks.noop.with_options(queue_name="known").send()

    found = depths(Task.objects.all())

    assert found.waits == pytest.approx(3_000, abs=60)
    assert found.is_searched
    assert (found.of("emails").is_more, found.of("known").is_more) == (True, True)
    emails = depths(Task.objects.all(), only="emails")
    assert (emails.of("emails").due, emails.of("emails").is_more) == (2, False)
    assert emails.waits == pytest.approx(1_200, abs=60)


def test_blocked_tasks_are_counted_apart_from_due_ones():
    some(2, queue_name="a")
    some(3, queue_name="a", **BLOCKED, enqueued_at=ago(600))
    some(1, queue_name="a", **BLOCKED, enqueued_at=ago(2_000), good_until=ago(10))
    some(1, queue_name="b", **BLOCKED | {"limit_key": None}, enqueued_at=ago(2_000))

    found = depths(Task.objects.all())

    assert {name: (depth.due, depth.blocked) for name, depth in found.items()} == {"a": (2, 3), "b": (0, 1)}
    assert found["a"].waits == pytest.approx(0, abs=60)
    assert found["a"].blocked_waits == found.blocked_waits == pytest.approx(600, abs=60)
    assert found["b"].blocked_waits is None, "a paused workflow holds it back"
    assert depths(Task.objects.all(), only="b").keys() == {"b"}


def test_of_more_blocked_tasks_than_are_counted_the_oldest_is_found_by_its_limit(monkeypatch):
    monkeypatch.setattr(module, "MAX_BLOCKED", 4)
    some(6, **BLOCKED)
    some(2, queue_name="b", **BLOCKED | {"limit_key": "z"}, priority=5)
    some(1, queue_name="b", **BLOCKED | {"limit_key": "z"}, enqueued_at=ago(600))
    some(1, queue_name="b", **BLOCKED | {"limit_key": None}, enqueued_at=ago(2_000))

    found = depths(Task.objects.all())

    assert found["default"].blocked >= 4
    assert found["default"].is_more_blocked
    assert found.of("b").is_more_blocked
    assert found.blocked_waits == pytest.approx(600, abs=60)
    assert found.is_searched_blocked

    other = depths(Task.objects.all(), only="other")
    assert (other.blocked_waits, other.of("other").is_more_blocked) == (None, True)

    monkeypatch.setattr(module, "MAX_SEARCHED", 1)
    assert not depths(Task.objects.all()).is_searched_blocked


@pytest.mark.slow
def test_blocked_tasks_are_read_by_their_index_up_to_the_bound(monkeypatch):
    monkeypatch.setattr(module, "MAX_BLOCKED", 1_000)
    some(12_000, **BLOCKED)
    some(6_000, status="COMPLETED", completed_at=ago(10))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks" if connection.vendor == "postgresql" else "ANALYZE")

    with CaptureQueriesContext(connection) as captured:
        depth = depths(Task.objects.all())["default"]

    assert (depth.blocked, depth.is_more_blocked) == (1_000, True)
    for query in captured:
        plan = _plan(query["sql"])
        assert not re.search(r"Seq Scan on horsies_tasks|SCAN horsies_tasks(?! USING)", plan), plan
        if connection.vendor == "postgresql":
            assert _rows_read(query["sql"]) <= 1_200


def test_within_the_bound_a_queue_that_is_not_found_is_empty(monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUES", 2)
    tasks.noop.with_options(queue_name="a").send()
    tasks.awrite.with_options(queue_name="b").send("x")

    found = depths(Task.objects.all(), also=["idle"])

    assert not found.is_more
    assert found.of("idle") == Depth()


def _rows_read(sql):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".replace("%", "%%"), [])
        (found,) = cursor.fetchone()
    nodes, rows = [node["Plan"] for node in (json.loads(found) if isinstance(found, str) else found)], 0
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if "Relation Name" in node:
            rows += (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return rows


def _plan(sql):
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {sql}".replace("%", "%%"), [])
        return "\n".join(str(row) for row in cursor.fetchall())
