"""Roll-ups count each attempt once by minute and by hour, whichever reaper counts it and when."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection, connections, transaction
from django.db.models import F, Sum

from horsies_django import RetryPolicy
from horsies_django.backend import HorsiesBackend
from horsies_django.core.compat import task_backends
from horsies_django.core.histogram import MAX_ERROR, bucket_of, merge, percentile
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Rollup, Task, TaskAttempt, Watermark
from horsies_django.models.rollup import RollupSpan, start_of
from horsies_django.ops.metrics.snapshot import collect
from horsies_django.reaper import rollup
from horsies_django.reaper.duties import run_pass
from horsies_django.reaper.rollup import BACKLOG, WATERMARK, roll_up
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

#: The columns that distinguish the roll-ups of one span and start.
KIND = ("queue_name", "task_name", "outcome", "will_retry", "error_code", "fingerprint")

#: The start of a past hour whose end has passed too; the retention keeps the minute before it.
NOON = (datetime.now(UTC) - timedelta(hours=1, seconds=10)).replace(minute=0, second=0, microsecond=0)


def options():
    backend = task_backends["default"]
    assert isinstance(backend, HorsiesBackend)
    return backend.config


def roll():
    """Roll up all settled attempts; return how many were counted."""
    return sum(roll_up(options()))


def settle():
    """Make all attempts old enough to be counted."""
    TaskAttempt.objects.update(finished_at=F("finished_at") - timedelta(seconds=10))


def attempt(task=None, *, finished=NOON, run=1.0, wait=1.0, outcome="COMPLETED", number=1, code="", **columns):
    started = finished - timedelta(seconds=run)
    return TaskAttempt.objects.create(
        task_id=task.pk if task else uuid4(),
        attempt=number,
        outcome=outcome,
        error_code=code,
        due_at=started - timedelta(seconds=wait),
        started_at=started,
        finished_at=finished,
        **columns,
    )


def task(*, name="tests.jobs.tasks.noop", queue="default"):
    return Task.objects.create(task_name=name, queue_name=queue, status="COMPLETED", completed_at=NOON, attempt=1)


def counted(span=RollupSpan.HOUR):
    return {key: count for *key_parts, count in _rows(span) for key in [tuple(key_parts)]}


def _rows(span):
    return Rollup.objects.filter(span=span).values_list("start", *KIND, "count")


def counted_from_attempts(minutes):
    """Return the same counts from the attempts themselves."""
    names = dict(Task.objects.values_list("pk", "task_name"))
    queues = dict(Task.objects.values_list("pk", "queue_name"))
    found = Counter()
    for row in TaskAttempt.objects.all():
        start = row.finished_at.replace(second=0, microsecond=0)
        start = start.replace(minute=start.minute // minutes * minutes)
        name, queue = names.get(row.task_id, ""), queues.get(row.task_id, "")
        found[start, queue, name, row.outcome, row.will_retry, row.error_code, row.fingerprint] += 1
    return found


@pytest.mark.slow
def test_every_attempt_is_counted_once_retries_included(drain):
    for number in range(5):
        tasks.add.send(number)
        tasks.on_emails.send()
    tasks.fail.send()
    tasks.flaky.send("x", 9)
    drain()
    settle()

    assert roll() == TaskAttempt.objects.count()

    for span, minutes in ((RollupSpan.MINUTE, 1), (RollupSpan.HOUR, 60)):
        assert counted(span) == counted_from_attempts(minutes)
    assert {key[KIND.index("will_retry") + 1] for key in counted()} == {True, False}
    assert roll() == 0


def test_later_attempts_are_added_to_the_same_rows():
    for number in range(3):
        attempt(task(), number=number + 1)
    assert roll() == 3
    attempt(task(), run=40, outcome="FAILED", code="X")
    attempt(task(), run=40)
    assert roll() == 2

    assert counted() == counted_from_attempts(60)
    row = Rollup.objects.get(span=RollupSpan.HOUR, outcome="COMPLETED")
    assert merge([row.runs]) == {bucket_of(1): 3, bucket_of(40): 1}


def test_a_crash_and_an_attempt_of_a_deleted_task_are_counted():
    attempt(task(), outcome="WORKER_FAILURE", code="WORKER_CRASHED", will_retry=True)
    attempt(outcome="FAILED", code="GONE")

    roll()

    assert counted() == {
        (NOON, "default", "tests.jobs.tasks.noop", "WORKER_FAILURE", True, "WORKER_CRASHED", ""): 1,
        (NOON, "", "", "FAILED", False, "GONE", ""): 1,
    }


def test_minutes_and_hours_include_their_first_moment():
    ends = [timedelta(0), -timedelta(milliseconds=1), timedelta(seconds=59.999), timedelta(minutes=59, seconds=59.999)]
    one = task()
    for number, end in enumerate(ends):
        attempt(one, finished=NOON + end, number=number)

    roll()

    minutes = {key[0] - NOON for key in counted(RollupSpan.MINUTE)}
    assert minutes == {timedelta(0), -timedelta(minutes=1), timedelta(minutes=59)}
    hours = {key[0] - NOON: count for key, count in counted().items()}
    assert hours == {timedelta(0): 3, -timedelta(hours=1): 1}


@pytest.mark.once
def test_an_attempt_whose_end_lies_in_the_far_future_holds_up_no_other():
    attempt(task(), finished=NOON + timedelta(days=400))
    attempt(task())

    assert roll() == 1


@pytest.mark.slow
@pytest.mark.once
def test_names_above_a_limit_are_counted_together_and_busy_ones_separately(monkeypatch):
    monkeypatch.setattr(rollup, "MAX_PAIRS", 3)
    for number in range(20):
        attempt(task(queue=f"one-off-{number}"))
    for _ in range(3):
        attempt(task(queue="busy"))
    for number in range(10):
        attempt(task(queue="other", name=f"task-{number}"))

    for _ in range(2):
        assert roll() == 33
        Watermark.objects.all().delete()  # so that the next round counts them again

    for span, start in (("M", NOON), ("H", NOON), ("T", start_of(0))):
        rows = Rollup.objects.filter(span=span, start=start)
        assert rows.aggregate(Sum("count"))["count__sum"] == 66
        assert rows.exclude(queue_name="").count() == 3
        assert rows.get(queue_name="").task_name == ""
        assert rows.get(queue_name="busy").count == 6
        assert sum(sum(row.runs.values()) for row in rows) == 66

    for _ in range(40):
        attempt(task(queue="late"))
    Watermark.objects.all().delete()
    assert roll() == 73
    assert not Rollup.objects.filter(queue_name="late").exists()


@pytest.mark.once
def test_errors_above_a_limit_are_counted_with_the_names_of_their_task_only(monkeypatch):
    monkeypatch.setattr(rollup, "MAX_ROLLUPS", 4)
    for number in range(8):
        attempt(task(), outcome="FAILED", code=f"CODE-{number % 6}")

    assert roll() == 8

    counts = {key[-2]: count for key, count in counted().items()}
    assert counts == {"CODE-0": 2, "CODE-1": 2, "CODE-2": 1, "CODE-3": 1, "": 2}
    assert {key[2] for key in counted()} == {"tests.jobs.tasks.noop"}


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns"])
def test_hours_are_in_utc_whatever_the_time_zone_of_the_site(settings, zone):
    settings.TIME_ZONE = zone
    attempt(task())

    roll()

    assert [key[0] for key in counted()] == [NOON]


def test_each_attempt_counts_its_own_wait_also_one_that_was_retried():
    again = task()
    attempt(again, finished=NOON - timedelta(minutes=5), number=1, wait=600, outcome="FAILED", will_retry=True)
    attempt(again, number=2, wait=300)
    attempt(wait=0)  # its task is deleted

    roll()

    rows = Rollup.objects.filter(span=RollupSpan.MINUTE).order_by("start", "task_name")
    assert [merge([row.waits]) for row in rows] == [{bucket_of(600): 1}, {0: 1}, {bucket_of(300): 1}]
    assert sum(row.wait_seconds for row in rows) == pytest.approx(900, abs=0.01)


@pytest.mark.slow
def test_the_p95_of_a_queue_that_is_late_includes_the_attempts_before_a_retry(drain):
    policy = RetryPolicy.fixed([3_600], auto_retry_for=["*"])
    tasks.fail.with_options(retry_policy=policy).send_many({} for _ in range(5))
    Task.objects.update(enqueued_at=NowPlus(-600))
    drain()
    settle()
    roll()

    metrics = collect(options(), with_trends=True)

    (queue,) = (queue for queue in metrics.queues if queue.name == "default")
    assert queue.throughput.counts == {"retried": 5}
    assert queue.throughput.wait_p95 == pytest.approx(600, rel=MAX_ERROR - 1)
    assert max(p95 for p95 in queue.trend.p95 if p95 is not None) == queue.throughput.wait_p95


@pytest.mark.slow
def test_the_latency_trend_is_complete_with_hundreds_of_error_groups_a_minute():
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    Rollup.objects.bulk_create(
        Rollup(
            span=RollupSpan.MINUTE, start=now - timedelta(minutes=ago), queue_name="default", task_name="t",
            outcome="FAILED", will_retry=True, fingerprint=f"{group:012}", count=1, waits={"20": 1},
        )
        for ago in range(1, 56)
        for group in range(400)
    )  # fmt: skip

    (queue,) = (queue for queue in collect(options(), with_trends=True).queues if queue.name == "default")

    assert sum(p95 is not None for p95 in queue.trend.p95) == 55


def test_recent_attempts_are_not_counted_until_slower_transactions_commit():
    """The key of an attempt follows the time of its write, not the time from which others see it."""
    old = attempt(task())
    young = attempt(task(), finished=datetime.now(UTC))
    beyond = attempt(task())  # old enough, but its key is higher

    assert roll() == 1
    assert Watermark.objects.get(name=WATERMARK).position == old.pk

    TaskAttempt.objects.filter(pk=young.pk).update(finished_at=NOON)
    assert roll() == 2
    assert Watermark.objects.get(name=WATERMARK).position == beyond.pk


def test_a_roll_up_skips_gaps_between_keys(monkeypatch):
    monkeypatch.setattr(rollup, "SIZE", 2)
    monkeypatch.setattr(rollup, "SIZE_OF_SQLITE", 2)
    for pk in (10, 11, 12, 10_000_000, 10_000_001):
        attempt(task(), pk=pk)
    Watermark.objects.create(name=WATERMARK, position=0)

    assert roll() == 5
    assert counted() == counted_from_attempts(60)


def test_the_first_roll_up_counts_only_the_newest_attempts():
    attempt(task(), pk=1)
    attempt(task(), pk=2 * BACKLOG)

    assert roll() == 1


def test_a_reaper_counts_nothing_while_another_holds_the_watermark():
    if not connection.features.has_select_for_update:
        pytest.skip("SQLite has one writer")
    attempt(task())
    roll()
    attempt(task())
    other = connections["default"].copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM horsies_watermarks FOR UPDATE")
        assert roll() == 0
        other.rollback()
    finally:
        other.close()

    assert roll() == 1
    assert Rollup.objects.filter(span=RollupSpan.HOUR).aggregate(n=Sum("count"))["n"] == 2


def test_a_reaper_whose_watermark_another_has_just_created_uses_that(monkeypatch):
    attempt(task())
    create = rollup._create_watermark

    def after_another(database):
        create(database)
        create(database)

    monkeypatch.setattr(rollup, "_create_watermark", after_another)

    assert roll() == 1
    assert Watermark.objects.count() == 1


@pytest.mark.slow
def test_concurrent_reapers_count_each_attempt_once(monkeypatch):
    for name in ("SIZE", "SIZE_OF_SQLITE"):
        monkeypatch.setattr(rollup, name, 7)
    one = task()
    for number in range(150):
        attempt(one, number=number)
    Watermark.objects.create(
        name=WATERMARK, position=TaskAttempt.objects.order_by("pk").values_list("pk", flat=True)[0] - 1
    )

    def reap():
        try:
            return roll()
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as threads:
        totals = [future.result(60) for future in [threads.submit(reap) for _ in range(3)]]

    assert sum(totals) + roll() == 150
    assert counted() == counted_from_attempts(60)


def test_a_reaper_whose_watermark_has_moved_counts_nothing():
    """With deferred transactions, SQLite lets two reapers read the same watermark."""
    attempt(task())

    def move_first(execute, sql, params, many, context):
        if sql.startswith('UPDATE "horsies_watermarks"'):
            execute("UPDATE horsies_watermarks SET position = position + 1000", (), False, context)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(move_first):
        assert roll() == 0
    assert not Rollup.objects.exists()


def test_the_next_pass_counts_a_batch_that_failed(monkeypatch):
    attempt(task())
    with monkeypatch.context() as patch:
        patch.setattr(rollup, "Rollup", None)
        reports = {report.duty: report for report in run_pass(options())}
        assert reports["rolled up attempts"].error
    assert roll() == 1
    assert counted() == counted_from_attempts(60)


def test_the_reaper_deletes_old_roll_ups():
    now = datetime.now(UTC)
    for span, age in (
        (RollupSpan.MINUTE, 2.9),
        (RollupSpan.MINUTE, 3.1),
        (RollupSpan.HOUR, 24 * 34.9),
        (RollupSpan.HOUR, 24 * 35.1),
    ):
        Rollup.objects.create(span=span, start=now - timedelta(hours=age), outcome="COMPLETED", count=1)

    reports = {report.duty: report.count for report in run_pass(options())}

    assert reports["deleted old roll-ups"] == 2
    assert {row.span: now - row.start < timedelta(days=35) for row in Rollup.objects.all()} == {"M": True, "H": True}


def test_percentiles_from_roll_ups_are_within_the_promised_error():
    runs = [0.0, 0.0004, 0.003, 0.02, 0.02, 0.5, 1.7, 1.7, 9.0, 61.0, 4_000.0]
    with transaction.atomic():
        one = task()
        for number, run in enumerate(runs):
            attempt(one, run=run, number=number)

    roll()

    histogram = merge(Rollup.objects.filter(span=RollupSpan.HOUR).values_list("runs", flat=True))
    assert sum(histogram.values()) == len(runs)
    for share in (0.5, 0.9, 0.95, 1.0):
        exact = sorted(runs)[max(1, -(-int(share * 100) * len(runs) // 100)) - 1]
        assert exact / (MAX_ERROR + 0.01) <= percentile(histogram, share) <= exact * (MAX_ERROR + 0.01)
