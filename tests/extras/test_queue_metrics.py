"""The metrics of the whole queue, at ``metrics`` of horsies_django.urls."""

import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import prometheus_client.registry
import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from horsies_django.core.compat import task_backends
from horsies_django.core.histogram import BOUNDS
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Rollup, Task, TaskAttempt, Watermark, Worker, depths
from horsies_django.models.rollup import RollupSpan
from horsies_django.reaper.duties import run_pass
from horsies_django.reaper.rollup import prune_rollups, roll_up
from horsies_django.schedules.scheduler import Scheduler
from tests.extras.monitoring import TOKEN, scrape, values, with_metrics
from tests.jobs import tasks
from tests.ops.inspector.factories import make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _token(settings):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)


def options():
    return task_backends["default"].config


def ended(number, *, queue="default", name="shop.tasks.pay", outcome="COMPLETED", run=1.0, wait=2.0, **columns):
    """Insert ended tasks, each with an attempt, and roll them up."""
    finished = datetime.now(UTC) - timedelta(seconds=30)
    started = finished - timedelta(seconds=run)
    rows = [
        Task(
            task_name=name,
            queue_name=queue,
            status="COMPLETED",
            completed_at=finished,
            started_at=started,
            enqueued_at=started - timedelta(seconds=wait),
            attempt=1,
        )
        for _ in range(number)
    ]
    Task.objects.bulk_create(rows)
    attempts = [
        TaskAttempt(
            task_id=row.pk,
            attempt=1,
            outcome=outcome,
            due_at=row.enqueued_at,
            started_at=started,
            finished_at=finished,
            **columns,
        )
        for row in rows
    ]
    TaskAttempt.objects.bulk_create(attempts)


def roll():
    for _ in roll_up(options()):
        pass


@pytest.mark.slow
def test_ended_tasks_are_counted_by_queue_task_and_outcome_and_retries_apart(client, drain):
    for number in range(3):
        tasks.add.send(number)
    tasks.on_emails.send()
    tasks.fail.send()
    tasks.flaky.send("metrics", 2)
    drain()
    TaskAttempt.objects.update(finished_at=F("finished_at") - timedelta(seconds=10))
    roll()

    found = scrape(client)

    counts = values(found["horsies_tasks"], "queue", "task", "outcome")
    assert counts["default", "tests.jobs.tasks.add", "completed"] == 3
    assert counts["emails", "tests.jobs.tasks.on_emails", "completed"] == 1
    assert counts["default", "tests.jobs.tasks.fail", "failed"] == 1
    assert counts["default", "tests.jobs.tasks.flaky", "completed"] == 1
    retries = values(found["horsies_task_retries"], "queue", "task")
    assert retries == {("default", "tests.jobs.tasks.flaky"): TaskAttempt.objects.filter(will_retry=True).count()}


def test_the_histograms_have_exact_bounds_counts_and_sums(client):
    ended(2, run=0.3, wait=5)
    ended(1, run=3.0, wait=0.002)
    ended(1, run=5_000.0, wait=0)
    roll()

    duration = scrape(client)["horsies_task_duration_seconds"]

    pair = ("default", "shop.tasks.pay")
    assert values(duration, "queue", "task", suffix="_count")[pair] == 4
    assert values(duration, "queue", "task", suffix="_sum")[pair] == pytest.approx(5_003.6)
    buckets = {float(le): count for (le,), count in values(duration, "le", suffix="_bucket").items()}
    assert list(buckets) == [pytest.approx(bound) for bound in (*BOUNDS, float("inf"))]
    assert [buckets[le] for le in (0.256, 0.512, 2.048, 4.096, 4194.304, float("inf"))] == [0, 2, 2, 3, 3, 4]
    wait = scrape(client)["horsies_task_wait_seconds"]
    assert values(wait, "queue", "task", suffix="_sum")[pair] == pytest.approx(10.002, abs=0.002)


@pytest.mark.slow
def test_no_metric_has_more_than_500_series_and_all_of_them_add_up(client):
    for number in range(300):
        ended(1 + number % 3, queue=f"queue-{number % 20:02}", name=f"task-{number:03}")
    ended(9, name="busy")
    ended(1, queue="zz", name="last", outcome="FAILED")
    Queue.objects.bulk_create([Queue(name=f"row-{number:03}") for number in range(600)])
    roll()

    found = scrape(client)

    for family in found.values():
        assert len(family.samples) <= 500, family.name
    counts = values(found["horsies_tasks"], "queue", "task", "outcome")
    assert counts["default", "busy", "completed"] == 9
    assert ("zz", "last", "failed") not in counts
    assert counts["other", "other", "failed"] == 1
    assert len({(queue, task) for queue, task, _ in counts}) == 249 + 1
    assert sum(counts.values()) == 300 + 100 * 3 + 9 + 1
    for name in ("wait", "duration"):
        times = values(found[f"horsies_task_{name}_seconds"], "queue", "task", suffix="_count")
        assert ("default", "busy") in times
        assert sum(times.values()) == 300 + 100 * 3 + 9 + 1
    assert ("other",) in values(found["horsies_queue_ready"], "queue")


@pytest.mark.slow
def test_no_series_falls_while_others_become_larger(client):
    """A pair keeps its name, and one that comes later takes it from none."""
    for number in range(300):
        ended(2, name=f"task-{number:03}")
    roll()
    before = scrape(client)
    for number in range(295, 300):
        ended(5, name=f"task-{number:03}")
        ended(9, name=f"new-{number}")
    roll()

    after = scrape(client)
    old, new = all_series(before), all_series(after)
    assert [key for key, value in new.items() if value < old.get(key, 0)] == []
    counts = [values(found["horsies_tasks"], "task") for found in (before, after)]
    assert counts[0].keys() == counts[1].keys()
    assert counts[1]["other",] - counts[0]["other",] == 5 * (5 + 9)


def all_series(found):
    counted = [family for family in found.values() if family.type in ("counter", "histogram")]
    return {(one.name, *sorted(one.labels.items())): one.value for family in counted for one in family.samples}


def test_a_pair_that_is_really_named_other_shares_the_series_of_the_others(client):
    ended(1, queue="other", name="other")
    TaskAttempt.objects.filter(task_id=Task.objects.get().pk).update(attempt=2, task_id=uuid4())  # its task is gone
    ended(1, queue="other", name="other")
    roll()

    assert values(scrape(client)["horsies_tasks"], "queue", "task", "outcome") == {("other", "other", "completed"): 2}


def test_totals_outlive_the_minutes_and_hours_and_count_every_attempt_once(client):
    ended(3)
    roll()
    ended(2)
    roll()
    Rollup.objects.exclude(span=RollupSpan.TOTAL).update(start=NowPlus(-100 * 86_400))

    for _ in prune_rollups(options()):
        pass

    assert set(Rollup.objects.values_list("span", flat=True)) == {RollupSpan.TOTAL.value}
    assert sum(values(scrape(client)["horsies_tasks"], "queue", "task", "outcome").values()) == 5
    assert Watermark.objects.count() == 1


def test_the_queue_gauges_show_what_waits_what_runs_and_how_long_the_oldest_has_waited(client):
    waiting = [tasks.on_emails.send() for _ in range(3)]
    Task.objects.filter(pk=waiting[0].id).update(enqueued_at=NowPlus(-90))
    tasks.on_emails.schedule(3_600)
    Queue.objects.create(name="quiet", paused=True)

    found = scrape(client)

    def of(name, queue):
        return values(found[f"horsies_queue_{name}"], "queue")[queue,]

    assert (of("ready", "emails"), of("scheduled", "emails"), of("running", "emails")) == (3, 1, 0)
    assert of("oldest_ready_seconds", "emails") == pytest.approx(90, abs=30)
    assert (of("paused", "quiet"), of("oldest_ready_seconds", "quiet"), of("paused", "emails")) == (1, 0, 0)
    assert found["horsies_unserved_queues"].samples[0].value == 1


def test_tasks_past_their_deadline_are_not_ready_even_beyond_the_bound_of_a_queue(client, monkeypatch):
    monkeypatch.setattr(depths, "MAX_COUNTED", 1)
    for columns in ({}, {"good_until": NowPlus(-10)}, {"blocked": True, "deferred": True, "limit_key": "a"}):
        for _ in range(3):
            make("pending", queue_name="emails", enqueued_at=NowPlus(-90), **columns)

    assert values(scrape(client)["horsies_queue_ready"], "queue")["emails",] == 3


def test_the_latency_warning_of_each_queue_is_a_gauge(client, settings):
    settings.TASKS["default"]["OPTIONS"]["queues"] = {"emails": {"latency_warning": "5m"}, "quiet": {"weight": 2}}
    for name in ("emails", "quiet"):
        Queue.objects.create(name=name)

    assert values(scrape(client)["horsies_queue_latency_warning_seconds"], "queue") == {("emails",): 300}


def test_workers_slots_and_the_last_passes_are_shown(client):
    Worker.objects.register("w-1", "w", "host", 1, threads=8, async_slots=100)
    Worker.objects.register("w-2", "w", "host", 2, threads=8, async_slots=100)
    Worker.objects.filter(pk="w-2").update(last_beat_at=NowPlus(-10_000))
    Worker.objects.register("w-3", "w", "host", 3)
    Worker.objects.record_stalled("w-3", 5)
    assert "horsies_reaper_last_pass_age_seconds" not in scrape(client)
    scheduler = Scheduler(options(), "default")
    scheduler._fire_next()

    found = scrape(client)

    assert found["horsies_workers"].samples[0].value == 1
    assert found["horsies_stalled_workers"].samples[0].value == 1
    assert values(found["horsies_worker_threads"], "worker") == {("w-1",): 8}
    assert 0 <= found["horsies_scheduler_last_pass_age_seconds"].samples[0].value < 60


def test_postgresql_shows_dead_rows_and_the_oldest_transaction_and_sqlite_neither(client):
    names = {"horsies_database_dead_tuples", "horsies_database_oldest_transaction_seconds"}

    found = scrape(client)

    assert names & set(found) == (names if connection.vendor == "postgresql" else set())


@pytest.mark.slow
def test_the_number_of_statements_does_not_grow_with_tasks_queues_or_workers(client):
    ended(1)
    tasks.noop.send()
    roll()
    scrape(client)
    with CaptureQueriesContext(connection) as few:
        scrape(client)
    for number in range(40):
        ended(3, queue=f"queue-{number}", name=f"task-{number}")
        tasks.noop.with_options(queue_name=f"queue-{number}").send()
        Worker.objects.register(f"w-{number}", "w", "host", 1, threads=8)
    roll()
    run_pass(options())

    with CaptureQueriesContext(connection) as many:
        scrape(client)

    assert len(many) == len(few) <= 13, [query["sql"][:80] for query in many.captured_queries]


@pytest.mark.slow
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="its planner tells")
def test_the_totals_are_read_by_their_index(client):
    Rollup.objects.bulk_create(
        Rollup(span="M", start=datetime.now(UTC) - timedelta(minutes=number), task_name="t", outcome="COMPLETED")
        for number in range(3_000)
    )
    ended(1)
    roll()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_rollups")
    with CaptureQueriesContext(connection) as captured:
        scrape(client)
    sql = next(query["sql"] for query in captured if "\"span\" = 'T'" in query["sql"])

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "Seq Scan" not in plan, plan


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has no statement timeout")
def test_a_database_that_does_not_answer_is_a_503_in_one_line(client):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 1")
            cursor.execute("SET LOCAL lock_timeout = 1")
        response = client.get("/horsies/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        transaction.set_rollback(True)

    if response.status_code != 200:  # a fast machine may answer within a millisecond
        assert response.status_code == 503
        assert response.content.decode().count("\n") == 1


def test_a_library_that_is_too_old_is_named_in_one_line(client, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("horsies_django.extras.prometheus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(prometheus_client.registry, "Collector")  # prometheus-client 0.12 has none

    response = client.get("/horsies/metrics", headers={"authorization": f"Bearer {TOKEN}"})

    assert response.status_code == 501
    assert response.content.decode().startswith("Metrics need the library prometheus-client: ")


def test_openmetrics_is_given_to_a_client_that_asks_for_it(client):
    accept = "application/openmetrics-text; version=1.0.0"

    response = client.get("/horsies/metrics", headers={"Authorization": f"Bearer {TOKEN}", "Accept": accept})

    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert response.content.endswith(b"# EOF\n")
