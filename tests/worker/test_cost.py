"""The cost of a task for the database, counted in statements and buffers."""

import os
import time
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django.models import Task, TaskAttempt
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.reaper.loop import Reaper
from horsies_django.schedules.scheduler import Scheduler
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.executor import InlineExecutor
from horsies_django.worker.inbox import Inbox
from horsies_django.worker.poll import Poller, PollInterval
from horsies_django.worker.runner_state import RunnerState
from horsies_django.worker.slot_pool import SlotPool, StartAheadTuner
from horsies_django.worker.tick import Ticker
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def statements(path):
    return os.path.getsize(path) if path.exists() else 0


@pytest.mark.slow
def test_a_task_of_a_deep_queue_costs_at_most_0_3_statements(manage, tmp_path):
    count = 20_000 if connection.vendor == "postgresql" else 2_000
    tasks.noop.send_many({} for _ in range(count))
    tally = tmp_path / "statements"

    process = manage("horsies_worker", "--drain", "--threads", "64", "-v0", COUNT_STATEMENTS=str(tally))

    assert process.wait(120) == 0, process.output
    assert Task.objects.completed().count() == TaskAttempt.objects.count() == count
    print(f"{statements(tally) / count:.3f} statements a task")
    assert statements(tally) / count <= 0.3


@pytest.mark.slow
def test_an_idle_worker_executes_few_statements_per_second(worker, tmp_path):
    tally = tmp_path / "statements"
    worker("--processes", "2", "-v0", runners=2, COUNT_STATEMENTS=str(tally))
    tasks.noop.send().get(timeout=20)
    seconds = 12

    # Polls become rarer with time; they are counted after that.
    settled = time.monotonic() + 6
    wait_until(lambda: time.monotonic() > settled, limit=10)
    before, since = statements(tally), time.monotonic()
    wait_until(lambda: time.monotonic() > since + seconds, limit=20)

    rate = (statements(tally) - before) / (time.monotonic() - since)
    print(f"idle: {rate:.2f} statements a second")
    # Without LISTEN, each runner polls once a second, and the scheduler looks once a second.
    assert rate <= (1.6 if connection.vendor == "postgresql" else 2.5)


def count_statements(act):
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


@pytest.mark.once
def test_the_intervals_of_an_idle_worker_leave_at_most_1_6_statements_a_second():
    """As the test before, but without a clock: counts of what it does, by the intervals at which it does that."""
    if connection.vendor == "sqlite":
        return
    config = WorkerConfig.of("default", processes=2)
    recovery, poll_interval = config.options.recovery, PollInterval(config.poll_interval, config.processes)
    pools = [SlotPool(is_async, 1, 0, InlineExecutor(print), StartAheadTuner(1, 0)) for is_async in (False, True)]
    state = RunnerState(config, "w", Inbox(), pools)
    state.next_heartbeat = 0.0
    ticker, store = Ticker(state, Poller(state)), state.store
    store.register()
    store.scan(pools)
    scheduler = Scheduler(config.options, "default")
    scheduler.expect_notifications(60)
    reaper = Reaper(config.options, "default", on_pass=lambda _: reaper.stop())
    reaper.run_once()
    poll_interval.set_notified(True)

    beat, poll = (
        count_statements(ticker.write),
        count_statements(lambda: store.scan(pools)),
    )
    look, reap = count_statements(scheduler.run_once), count_statements(reaper.run)

    # In a transaction, which tasks it holds, and a heartbeat; after it a notification to itself.
    assert (beat, poll, look) == (5, 1, 1)
    runner = beat / recovery.heartbeat_interval + poll / poll_interval.longest_pause
    rate = reap / recovery.check_interval + look / scheduler.run_once().pause + config.processes * runner
    print(f"{reap} statements a pass of the reaper, {rate:.2f} a second in all")
    assert rate <= 1.6


@pytest.mark.once
def test_a_worker_without_a_free_slot_prefetches_by_one_statement():
    if connection.vendor == "sqlite":
        return  # a claim is several statements
    pool = SlotPool(False, 0, 5, InlineExecutor(print), StartAheadTuner(0, 0))
    state = RunnerState(WorkerConfig.of("default"), "w", Inbox(), [pool])
    state.mark_ready("default", False)
    ticker = Ticker(state, Poller(state))
    ticker.write()  # it compiles the statement
    tasks.noop.send_many({} for _ in range(5))

    with CaptureQueriesContext(connection) as captured:
        tick = ticker.write()

    assert [len(claims) for _, claims in tick.prefetched] == [5]
    assert [query["sql"].split()[0] for query in captured] == ["BEGIN", "WITH", "COMMIT"]


def plan_nodes(plan):
    yield plan
    for child in plan.get("Plans", []):
        yield from plan_nodes(child)


@pytest.fixture
def deep_queue():
    """Send enough rows, and gather statistics, for the planner to prefer indexes."""
    tasks.noop.send_many({} for _ in range(20_000))
    Task.objects.filter(pk__in=Task.objects.values("pk")[:15_000]).update(
        status="COMPLETED", completed_at="2026-01-01T00:00Z"
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@pytest.mark.slow
@pytest.mark.once
def test_claims_and_ends_read_only_the_task_indexes(deep_queue):
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        claims = Task.objects.filter(queue_name="default").claim("w", start=64, prefetch=16)
        ends = [Completion(claimed.task_id, claimed.claim, '{"ok":null}') for claimed in claims[:64]]
        Task.objects.complete(ends, WorkerInfo("w", "host", 1))
        Task.objects.start(claims[64:], "w")

    hot = [query["sql"] for query in captured if "horsies_tasks" in query["sql"]]
    assert len(hot) == 6  # select, two updates, the results, the attempts, the starts
    if connection.vendor == "sqlite":
        plans = [_sqlite_plan(sql) for sql in hot]
        assert "horsies_task_claim" in plans[0]
        assert not any("SCAN horsies_tasks" in plan and "USING" not in plan for plan in plans), plans
        return
    for number, sql in enumerate(hot):
        nodes = list(plan_nodes(_postgres_plan(sql)))
        scans = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
        assert scans <= {"horsies_queues"}, sql  # it has a few rows
        names = {node["Index Name"] for node in nodes if "Index Name" in node}
        indexes = {name for name in names if not name.startswith("horsies_queue")}
        if number == 0:
            assert indexes == {"horsies_task_claim"}
            assert not [node for node in nodes if "Sort" in node["Node Type"]], "the index gives the order"


def _postgres_plan(sql):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + sql.replace("%", "%%"), [])
        return cursor.fetchone()[0][0]["Plan"]


def _sqlite_plan(sql):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + sql.replace("%", "%%"), [])
        return "\n".join(row[3] for row in cursor.fetchall())


@pytest.mark.slow
@pytest.mark.once
def test_future_and_finished_rows_add_no_cost_to_a_claim():
    if connection.vendor == "sqlite":
        return  # SQLite counts no buffers
    tasks.noop.send_many({} for _ in range(5_000))
    _vacuum()
    before = _buffers_of_a_claim()

    finished = [handle.id for handle in tasks.noop.send_many({} for _ in range(15_000))]
    Task.objects.filter(pk__in=finished).update(status="COMPLETED", completed_at="2026-01-01T00:00Z")
    tasks.noop.with_options(priority=100, run_after=timedelta(days=1)).send_many({} for _ in range(20_000))
    _vacuum()

    assert _buffers_of_a_claim() <= before + 10


def _vacuum():
    """Remove dead rows, which the first claim would read, and update the statistics of the planner."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE horsies_tasks")


def _buffers_of_a_claim():
    claim = Task.objects.next_up().filter(queue_name="default")[:50]
    sql, params = claim.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        plan = cursor.fetchone()[0]
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
