"""Batches: each turn of a loop over rows happens exactly once, whatever becomes of the run around it."""

import signal
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Count, F, Window
from django.db.models.functions import Lower, RowNumber
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext

from horsies_django import TaskStatus
from horsies_django.db import notifications
from horsies_django.models import Task, TaskAttempt, TaskStep
from horsies_django.testing import drain as run_due
from horsies_django.testing import task_context
from tests.conftest import wait_until
from tests.jobs.entries import entries
from tests.jobs.models import Entry, Item
from tests.steps import batch_jobs as jobs
from tests.steps.jobs import note

pytestmark = pytest.mark.django_db(transaction=True)

TEXTS = "abcdefg"


def counts():
    """Return the counts of all rows in the order of their keys."""
    return list(Item.objects.order_by("pk").values_list("count", flat=True))


@pytest.fixture
def items():
    """Create seven rows. Each second one has the date of the one before."""
    begun = datetime(2026, 10, 25, 0, 59, 59, 999_999, tzinfo=UTC)
    return Item.objects.bulk_create(
        Item(
            text=text,
            count=0,
            uid=UUID(int=number << 64 | 7),
            at=begun + timedelta(microseconds=number),
            on=date(2026, 1, 1 + number // 2),
            amount=Decimal(number) / 10 - Decimal("0.2001"),
        )
        for number, text in enumerate(TEXTS)
    )


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("body", [jobs.in_block, jobs.by_function, jobs.in_coroutine])
def test_a_retry_goes_on_after_the_last_committed_turn(items, body):
    handle = body.send([], "d")

    run_due(retries=True)

    assert handle.value(0) is None
    assert counts() == [1] * 7
    assert entries() == ["a,b", "c,d", "e,f", "g"]
    assert TaskStep.objects.get().result == {"ok": {"rows": 7, "turns": 4}}
    assert TaskAttempt.objects.count() == 2


@pytest.mark.parametrize(
    "order",
    [
        *(["pk"], ["-on", "-text"], ["amount"], ["on", "at", "id"]),
        *(
            pytest.param(order, marks=pytest.mark.slow)
            for order in (["-pk"], ["uid"], ["at"], ["-at"], ["on"], ["text"])
        ),
    ],
    ids=",".join,
)
def test_the_place_of_the_last_row_survives_in_any_order(items, order):
    handle = jobs.in_block.send(order, "d")

    run_due(retries=True)

    assert handle.value(0) is None
    assert counts() == [1] * 7
    texts = list(Item.objects.order_by(*order, "pk").values_list("text", flat=True))
    assert ",".join(entries()).split(",") == texts


def test_rows_of_values_have_a_place_too(items):
    handle = jobs.from_values.send()

    run_due()

    assert handle.value(0) == ["g", "f", "e", "d", "c", "b", "a"]


def test_leaving_a_turn_by_break_or_continue_commits_it(items):
    handle = jobs.leaves_early.send()

    run_due()

    assert handle.value(0) is None
    assert counts() == [1, 1, 1, 1, 1, 1, 0]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_loop_that_the_body_has_left_is_over_in_later_runs(items):
    handle = jobs.stops_after_a_turn.send(fails_between=False)

    run_due(retries=True)

    assert handle.value(0) is None
    assert counts() == [1, 1, 0, 0, 0, 0, 0]
    assert entries() == ["after"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_loop_that_an_exception_has_left_goes_on_in_later_runs(items):
    handle = jobs.stops_after_a_turn.send(fails_between=True)

    run_due(retries=True)

    assert handle.value(0) is None
    assert counts() == [1] * 7
    assert entries() == ["after"]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("broken", ["a", "c"])
def test_a_turn_whose_failure_the_body_has_caught_is_done_in_a_later_run(items, broken):
    handle = jobs.goes_on_after_a_failure.send(broken)

    run_due(retries=True)

    assert handle.value(0) is None
    assert counts() == [1] * 7
    assert entries() == ["caught", "after"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_loop_whose_rows_could_not_be_read_goes_on_in_a_later_run(items):
    left = [jobs.Broken("once")]

    def fail_once(**kwargs):
        if left:
            raise left.pop()

    handle = jobs.goes_on_after_a_failure.send("nothing")
    post_init.connect(fail_once, sender=Item)
    try:
        run_due(retries=True)
    finally:
        post_init.disconnect(fail_once, sender=Item)

    assert handle.value(0) is None
    assert counts() == [1] * 7
    assert entries() == ["caught", "after"]


def test_each_loop_of_a_body_goes_through_all_rows(items):
    handle = jobs.two_loops.send()

    run_due()

    assert handle.value(0) is None
    assert counts() == [2] * 7
    rows = TaskStep.objects.order_by("position").values_list("number", "status", "result__ok__rows")
    assert list(rows) == [(1, "COMPLETED", 0), (2, "COMPLETED", 7), (3, "COMPLETED", 7)]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_loop_that_the_body_has_left_is_over_although_the_next_record_is_made_in_a_later_handler(items, run_script):
    def body(context):
        for turn in context.batches(Item.objects.all(), size=2):
            with turn as rows:
                jobs.count_up(rows)
            break
        try:
            raise jobs.Broken
        except jobs.Broken:
            context.step("handler", int)
        if context.attempt == 1:
            raise jobs.Broken

    assert run_script(body, attempts=2).get(0).is_ok()
    assert counts() == [1, 1, 0, 0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_turn_that_could_not_commit_is_done_in_a_later_run(items, run_script, entries):
    def body(context):
        try:
            for turn in context.batches(Item.objects.all(), size=4):
                with turn as rows:
                    jobs.count_up(rows)
                    if context.attempt == 1:
                        fails.append(1)
        except IntegrityError:
            context.step("handler", note, "handler")
        if context.attempt == 1:
            raise jobs.Broken

    def fail(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if fails and sql.startswith("INSERT") and "horsies_task_steps" in sql:
            fails.clear()
            raise IntegrityError("deferred")
        return result

    fails = []
    with connection.execute_wrapper(fail):
        handle = run_script(body, attempts=2)

    assert handle.get(0).is_ok()
    assert counts() == [1] * 7
    assert entries() == ["handler"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_outage_of_the_body_s_own_query_in_a_turn_uses_no_retry(items, run_script):
    def body(context):
        for turn in context.batches(Item.objects.all(), size=4):
            with turn as rows:
                jobs.count_up(rows)
                if context.attempt == 1:
                    raise OperationalError("the server closed the connection")
        return "done"

    handle = run_script(body)

    assert handle.value(0) == "done"
    assert counts() == [1] * 7
    assert Task.objects.get().retry_count == 0


def test_the_second_loop_of_a_body_reports_its_progress_too(items):
    handle = jobs.two_loops.send()

    run_due()

    assert handle.info().progress.done == 7


def test_callbacks_run_after_the_commit_of_each_turn(items):
    jobs.commits.send()

    run_due()

    assert entries() == ["a", "a committed", "c", "c committed", "e", "e committed", "g", "g committed"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_another_order_ends_the_task_before_it_runs(items, monkeypatch):
    handle = jobs.ordered.send()
    run_due()
    monkeypatch.setattr(jobs, "ORDER", ["-text"])

    run_due(retries=True)

    assert handle.get(0).err_value.error_code == "STEP_MISMATCH"
    assert counts() == [1, 1, 0, 0, 0, 0, 0]


def test_the_loop_reports_its_progress(items):
    handle = jobs.in_block.send([], None)
    run_due()

    progress = handle.info().progress

    assert (progress.done, progress.total) == (7, 7)


def test_a_total_is_estimated_at_the_first_turn(items):
    jobs.ordered.send()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_item")

    run_due()

    progress = Task.objects.get().progress
    assert (progress["done"], progress["total"]) == (2, 7)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_task_without_time_for_another_turn_goes_on_with_a_fresh_limit(items, monkeypatch):
    clock = time.monotonic
    passed = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed[0])
    monkeypatch.setattr(notifications._limiter, "_buckets", {})  # it remembers times of this clock
    monkeypatch.setattr(jobs, "tick", lambda seconds: passed.append(passed.pop() + seconds))
    handle = jobs.slow_turns.send()

    run_due()

    assert handle.value(0) is None
    assert counts() == [1] * 7
    assert entries() == ["begun"] * 4
    assert TaskAttempt.objects.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("body", [jobs.held, jobs.held_coroutine])
@pytest.mark.parametrize("by", ["SIGTERM", "SIGTSTP"])
def test_a_worker_that_stops_or_is_quiet_hands_the_task_back_after_the_turn(items, worker, gate, body, by):
    handle = body.send(str(gate))
    first = worker("--threads", "1", "--poll-interval", "0.1")
    wait_until(gate.with_name("gate.held").exists)
    first.signal(getattr(signal, by))
    wait_until(lambda: {"SIGTERM": "worker stopping id=", "SIGTSTP": "worker quiet id="}[by] in first.output)

    gate.touch()

    wait_until(lambda: handle.status() == TaskStatus.PENDING)
    assert counts() == [1, 1, 1, 1, 0, 0, 0]
    run_due(scheduled=True)
    assert handle.value(0) is None
    assert counts() == [1] * 7
    assert TaskAttempt.objects.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("body", [jobs.paused, jobs.paused_coroutine])
def test_a_stop_ends_a_pause(items, worker, body):
    handle = body.send(3_600)
    process = worker("--threads", "1")
    wait_until(lambda: counts()[0] == 1)

    process.stop()

    assert process.process.returncode == 0
    assert handle.status() == TaskStatus.PENDING
    assert counts() == [1, 1, 0, 0, 0, 0, 0]
    assert not TaskAttempt.objects.exists()


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer, so a cancel waits for the turn")
def test_a_cancel_does_not_wait_for_the_turn_and_undoes_it(items, worker, gate):
    handle = jobs.held.send(str(gate))
    process = worker("--threads", "1")
    wait_until(gate.with_name("gate.held").exists)

    handle.cancel(include_running=True)
    gate.touch()
    process.stop()

    assert handle.status() == TaskStatus.CANCELLED
    assert counts() == [1, 1, 0, 0, 0, 0, 0]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows")
@pytest.mark.parametrize("skip_locked", [False, True])
def test_the_rows_of_a_turn_are_locked(items, skip_locked):
    handle = jobs.locks.send(skip_locked=skip_locked)

    with CaptureQueriesContext(connection) as queries:
        run_due()

    assert handle.value(0) is None
    (locking,) = [query["sql"] for query in queries if "LIMIT 500 FOR UPDATE" in query["sql"]][:1]
    assert locking.endswith('FOR UPDATE OF "jobs_item"' + " SKIP LOCKED" * skip_locked)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows")
def test_rows_that_others_have_locked_are_left_out(items, worker):
    handle = jobs.locks.send(skip_locked=True)

    with transaction.atomic():
        Item.objects.select_for_update().get(text="c")
        worker()
        wait_until(lambda: handle.status() == TaskStatus.COMPLETED)

    assert counts() == [1, 1, 0, 1, 1, 1, 1]


def bad_querysets():
    rows = Item.objects
    return {
        "a slice": rows.all()[:10],
        "a union": rows.filter(count=1).union(rows.filter(count=2)),
        "distinct": rows.distinct(),
        "aggregates": rows.values("text").annotate(n=Count("pk")),
        "window functions": rows.annotate(n=Window(RowNumber())),
        "a join to many rows": Entry.objects.filter(items__count=0),
        "values_list": rows.values_list("pk"),
        "without id": rows.values("text"),
        "'?'": rows.order_by("?"),
        "'owner'": rows.order_by("owner"),
        "'owner_id'": rows.order_by("owner_id"),
        "'owner__key'": rows.order_by("owner__key"),
        "Lower": rows.order_by(Lower("text")),
        "'on', '-at'": rows.order_by("on", "-at"),
        "'on', 'on'": rows.order_by("on", "on"),
        "'changed_at'": rows.order_by("changed_at"),
        "'big'": rows.annotate(big=F("count") + 1).order_by("big"),
        "database 'other'": rows.using("other"),
    }


@pytest.mark.parametrize("problem", list(bad_querysets()))
def test_a_queryset_that_a_loop_can_t_go_through_is_refused_at_the_call(problem):
    context = task_context(jobs.in_block)

    with pytest.raises(ValueError, match=r"batches\(\) got .*allowed: ") as raised:
        context.batches(bad_querysets()[problem])

    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": 0}, "size=0"),
        ({"size": True}, "size=True"),
        ({"size": 2.5}, "size=2.5"),
        ({"skip_locked": True}, "skip_locked=True"),
        ({"pause": -1}, "pause"),
        ({"name": "event:x"}, "event:x"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_the_call(options, error):
    with pytest.raises(ValueError, match=error):
        task_context(jobs.in_block).batches(Item.objects.all(), **options)


def test_what_is_no_queryset_or_no_function_is_refused_at_the_call():
    async def body(rows): ...

    context = task_context(jobs.in_block)

    with pytest.raises(TypeError, match="allowed: a queryset"):
        context.batches([1, 2])
    with pytest.raises(TypeError, match="no coroutine function"):
        context.batches(Item.objects.all(), body)
    with pytest.raises(TypeError, match="no coroutine function"):
        context.abatches(Item.objects.all(), body)


def test_querysets_that_have_each_row_once_are_taken(items):
    context = task_context(jobs.in_block)
    taken = [
        Item.objects.exclude(owner__key="x").select_related("owner"),
        Item.objects.annotate(big=F("count") + 1).filter(big__gt=0),
        Item.objects.order_by("text").reverse(),
        Item.objects.none(),
        Item.objects.only("text"),
    ]

    seen = []
    for rows in taken:
        texts = []
        context.batches(rows, lambda rows, texts=texts: texts.extend(row.text for row in rows), size=3)
        seen.append("".join(texts))

    assert seen == [TEXTS, TEXTS, TEXTS[::-1], "", TEXTS]


def test_a_turn_that_is_not_entered_is_an_error(items):
    context = task_context(jobs.in_block)

    def body():
        for _ in context.batches(Item.objects.all()):
            Item.objects.update(count=5)

    with pytest.raises(RuntimeError, match="not entered"):
        body()

    assert counts() == [0] * 7


def test_a_turn_that_is_left_open_is_an_error_and_undone(items):
    turns = task_context(jobs.in_block).batches(Item.objects.all(), size=2)
    first = next(turns)
    jobs.count_up(first.__enter__())

    with pytest.raises(RuntimeError, match="is open"):
        next(turns)
    with pytest.raises(RuntimeError, match="left after the loop"):
        first.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="entered again"):
        first.__enter__()

    assert counts() == [0] * 7
    assert not connection.in_atomic_block


def test_no_turn_follows_one_that_has_failed(items):
    def body(context):
        for turn in context.batches(Item.objects.all(), size=2):
            try:
                with turn as rows:
                    jobs.count_up_until(rows, "a")
            except jobs.Broken:
                continue

    with pytest.raises(RuntimeError, match="has failed"):
        body(task_context(jobs.in_block))

    assert counts() == [0] * 7


def test_steps_waits_and_other_loops_are_errors_inside_a_loop(items):
    context = task_context(jobs.in_block)
    for turn in context.batches(Item.objects.all(), size=4):
        with turn:
            with pytest.raises(RuntimeError, match="inside a turn of the loop 'batches'"):
                context.step("note", print)
            with pytest.raises(RuntimeError, match="inside a turn"):
                context.sleep(5)
            with pytest.raises(RuntimeError, match="inside a turn"):
                context.batches(Item.objects.all(), name="inner")
        with pytest.raises(RuntimeError, match="inside the loop 'batches'"):
            context.step("note", print)

    context.step("note", str)


def test_a_loop_is_an_error_inside_a_transaction(items):
    handle = jobs.inside_atomic.send()
    run_due()

    assert "inside a transaction" in handle.get(0).err_value.message
    with transaction.atomic(), pytest.raises(RuntimeError, match="inside a transaction"):
        task_context(jobs.in_block).batches(Item.objects.all())
