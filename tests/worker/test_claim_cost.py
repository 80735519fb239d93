"""A claim costs the same in a deep table as in an empty one.

The cost is counted: on PostgreSQL in buffers and index entries, on SQLite in steps of its virtual machine.
"""

import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import Random
from statistics import median
from typing import NamedTuple

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.db.connection import own_connection
from horsies_django.models import Queue, Task, TaskAttempt
from horsies_django.models.claim import complete_and_claim
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.models.queue_scan import QueueScan
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.store import WorkerStore
from tests.database import is_postgres
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

#: Tasks in one exchange.
BATCH = 50

#: The identities of the workers that claim.
RUNNERS = [WorkerInfo(f"depth-{number}", "host", number) for number in range(1, 4)]

AGES_AGO = timezone.now() - timedelta(days=30)


def exchange_of(runner=RUNNERS[0], *, is_async=False):
    return complete_and_claim.compile_for(Task.objects.all(), runner, is_async=is_async)


def ends_of(claims):
    return [Completion(claimed.task_id, claimed.claim, '{"ok":null}') for claimed in claims]


@pytest.fixture(autouse=True)
def busy_connection(transactional_db):
    """Use the connection of a producer, with autovacuum off."""
    with own_connection("default", "depth", is_busy=True):
        if is_postgres():
            set_autovacuum(False)
            yield
            set_autovacuum(True)
        else:
            connections["default"].ensure_connection()
            connections["default"].connection.set_progress_handler(steps, 100)
            yield


def set_autovacuum(is_on):
    run_sql(f"ALTER TABLE horsies_tasks SET (autovacuum_enabled = {is_on})")


def run_sql(sql, *params):
    with connections["default"].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else None


class Steps:
    """Counts hundreds of steps."""

    count = 0

    def __call__(self):
        self.count += 1


steps = Steps()


class Cost(NamedTuple):
    """Buffers of the tasks' table and its indexes, and entries of the claim index, dead ones included.

    On SQLite, hundreds of steps take the place of buffers.
    """

    buffers: float
    entries: float


def cost_so_far():
    """Return the total cost so far."""
    if not is_postgres():
        return Cost(steps.count, 0)
    run_sql("SELECT pg_stat_force_next_flush()")
    ((buffers, entries),) = run_sql(
        "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read,"
        " pg_stat_get_tuples_returned('horsies_task_claim'::regclass)"
        " FROM pg_statio_user_tables WHERE relname = 'horsies_tasks'"
    )
    return Cost(buffers, entries)


class Drain:
    """Completes and claims in turns; keeps the claims and the cost of each turn."""

    def __init__(self, exchange, free_slots=BATCH, queues=("default",)):
        self.exchange, self.free_slots, self.queues = exchange, free_slots, queues
        self.claims, self.costs, self.held = [], [], []

    def make_turns(self, turns=10_000, *, and_then=lambda: None):
        """Make ``turns`` turns, or fewer if no task is left."""
        for _ in range(turns):
            before = cost_so_far()
            self.held = self.exchange.run(ends_of(self.held), self.free_slots, self.queues)
            after = cost_so_far()
            self.costs.append(Cost(after.buffers - before.buffers, after.entries - before.entries))
            self.claims += self.held
            if not self.held:
                break
            and_then()
        return self.held

    def assert_all_ran_once(self):
        ids = Counter(claimed.task_id for claimed in self.claims)
        assert set(ids.values()) == {1}
        assert set(Task.objects.values_list("pk", flat=True)) == set(ids)
        assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
        assert TaskAttempt.objects.count() == len(ids)


def typical(costs):
    """Return the median: some claims start at the first row, and the first few include planning."""
    return Cost(*map(median, zip(*costs, strict=True)))


def assert_is_flat(then, now):
    print(f"{then} then, {now} now")
    assert now.buffers <= 1.5 * then.buffers
    assert now.entries <= 1.5 * then.entries + BATCH


# Rows of every kind before and after the next tasks.

DEPTH = 20_000 if connection.vendor == "postgresql" else 5_000


def in_depth(**columns):
    tasks.noop.with_options(priority=100).send_many({} for _ in range(DEPTH))
    Task.objects.filter(priority=100).update(**columns)


def later():
    tasks.noop.with_options(priority=100, run_after=timedelta(days=1)).send_many({} for _ in range(DEPTH))


def retrying():
    due = timezone.now() + timedelta(days=1)
    in_depth(deferred=True, enqueued_at=due, next_retry_at=due, retry_count=1)


def waiting():
    due = timezone.now() + timedelta(days=36_500)
    in_depth(deferred=True, enqueued_at=due, waits_for="event:approved")


def finished():
    in_depth(status=TaskStatus.COMPLETED, completed_at=timezone.now())


def failed():
    in_depth(status=TaskStatus.FAILED, failed_at=timezone.now())


def running():
    in_depth(status=TaskStatus.RUNNING, claim=1, claimed_by_worker_id="another", started_at=timezone.now())


def for_coroutines():
    in_depth(is_async=True)


def behind():
    in_depth(priority=-100)


def in_200_queues():
    for number in range(200):
        some = tasks.noop.with_options(queue_name=f"queue-{number}", priority=-1)
        some.send_many({} for _ in range(DEPTH // 200))


def older_tasks_of_another_queue():
    in_depth(queue_name="another", priority=0)


def overdue():
    in_depth(priority=0, good_until=AGES_AGO)


def urgent_tasks_of_another_queue():
    in_depth(queue_name="another", enqueued_at=AGES_AGO)


NO_MARK = pytest.mark.xfail(
    connection.vendor == "sqlite", reason="SQLite has no mark, so each claim scans these rows", strict=True
)

KINDS = [
    later,
    pytest.param(retrying, marks=pytest.mark.slow),
    pytest.param(waiting, marks=pytest.mark.slow),
    finished,
    pytest.param(failed, marks=pytest.mark.slow),
    pytest.param(running, marks=pytest.mark.slow),
    pytest.param(for_coroutines, marks=pytest.mark.slow),
    behind,
    in_200_queues,
    pytest.param(overdue, marks=NO_MARK),
    older_tasks_of_another_queue,
    urgent_tasks_of_another_queue,
]


@pytest.fixture
def _always_start_at_the_mark(monkeypatch):
    """Let claims start at the mark for a long time; normally that depends on how long a claim takes."""
    monkeypatch.setattr(complete_and_claim, "_DURATION_FACTOR", 1_000_000)
    monkeypatch.setattr(complete_and_claim, "_MAX_DURATION", 3_600.0)


@pytest.mark.slow
@pytest.mark.usefixtures("_always_start_at_the_mark")
@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_costs_the_same_in_a_deep_table_as_in_an_empty_one(kind):
    tasks.noop.send_many({} for _ in range(600))
    in_empty = Drain(exchange_of())
    in_empty.make_turns(12)
    kind()
    tasks.noop.send_many({} for _ in range(600))

    in_deep = Drain(exchange_of())
    in_deep.make_turns(12)

    assert len(in_deep.claims) == len(in_empty.claims) == 600
    assert_is_flat(typical(in_empty.costs), typical(in_deep.costs))


@pytest.mark.slow
@pytest.mark.parametrize("queues", [["default"], ["default", "emails", "empty"]], ids=["one queue", "several queues"])
def test_rows_of_other_queues_add_no_cost_to_a_claim_that_finds_few_tasks(queues):
    """Most claims of a worker that keeps up get less than they ask for, so that the next starts at the first row."""

    def trickle(drain):
        for _ in range(12):
            tasks.noop.send_many([{}] * 3)
            drain.make_turns(1)
        return typical(drain.costs)

    in_empty = trickle(Drain(exchange_of(), queues=queues))
    urgent = tasks.noop.with_options(priority=100, queue_name="another")
    urgent.send_many({} for _ in range(DEPTH))

    in_deep = trickle(drain := Drain(exchange_of(), queues=queues))

    assert len(drain.claims) == 36
    assert_is_flat(in_empty, in_deep)


@pytest.mark.slow
@pytest.mark.parametrize("queues", [["another"], ["default", "another"]], ids=["one queue", "several queues"])
def test_a_claim_does_not_scan_a_queue_paused_during_a_drain(queues):
    tasks.noop.with_options(queue_name="another").send_many({} for _ in range(DEPTH))
    drain = Drain(exchange_of(), queues=queues)
    drain.make_turns(4)
    Queue.objects.create(name="another", paused=True)
    tasks.noop.send()

    before = cost_so_far()
    claims = drain.make_turns(1)
    after = cost_so_far()

    assert [claimed.queue_name for claimed in claims] == ["default"][: len(queues) - 1]
    assert after.buffers - before.buffers <= 2 * typical(drain.costs[:4]).buffers


@pytest.mark.slow
@pytest.mark.parametrize("queues", [["default"], ["default", "emails"]], ids=["one queue", "several queues"])
def test_a_claim_skips_locked_rows_at_the_head(queues):
    if not is_postgres():
        return  # SQLite locks no rows
    tasks.noop.send_many({} for _ in range(600))
    head = list(Task.objects.next_up().values_list("pk", flat=True)[:550])
    another = connections["default"].copy()
    try:
        with another.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT id FROM horsies_tasks WHERE id = ANY(%s) FOR UPDATE", [head])
            drain = Drain(exchange_of(), free_slots=8, queues=queues)
            for _ in range(30):  # a claim that gets less than it asks for is followed by another one
                drain.make_turns(1)
    finally:
        another.close()

    assert len(drain.claims) == 50
    assert not {claimed.task_id for claimed in drain.claims} & set(head)


@pytest.mark.slow
def test_tasks_of_several_queues_are_claimed_in_one_order():
    """priority ↓, enqueued_at ↑, id ↑, over all of them."""
    rng = Random(7)
    queues = ["default", "emails", "reports"]
    for _ in range(60):
        some = tasks.noop.with_options(priority=rng.randint(-2, 2), queue_name=rng.choice(queues))
        some.send_many([{}] * rng.randint(1, 9))
    tasks.noop.with_options(priority=100, queue_name="another").send_many([{}] * 10)
    wanted = Task.objects.filter(queue_name__in=queues).next_up()
    in_order = list(wanted.values_list("pk", flat=True))

    drain = Drain(exchange_of(), queues=queues)
    drain.make_turns()

    assert [claimed.task_id for claimed in drain.claims] == in_order


# While an old transaction keeps all row versions.


@contextmanager
def old_transaction():
    if not is_postgres():
        yield
        return
    another = connections["default"].copy()
    try:
        with another.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM horsies_tasks")
            yield
    finally:
        another.close()


@pytest.mark.slow
def test_an_old_open_transaction_does_not_make_later_claims_more_expensive():
    count = 5_000 if is_postgres() else 500
    tasks.noop.send_many({} for _ in range(count))
    drain = Drain(exchange_of())

    with old_transaction():
        drain.make_turns()

    drain.assert_all_ran_once()
    assert_is_flat(typical(drain.costs[5:25]), typical(drain.costs[-22:-2]))


@pytest.mark.slow
def test_an_old_open_transaction_does_not_make_claims_scan_ended_higher_priorities():
    count = 5_000 if is_postgres() else 500
    tasks.noop.with_options(priority=1).send_many({} for _ in range(count))
    Task.objects.update(enqueued_at=AGES_AGO)
    tasks.noop.send_many({} for _ in range(count // 2))
    drain = Drain(exchange_of())

    with old_transaction():
        drain.make_turns()

    drain.assert_all_ran_once()
    assert_is_flat(typical(drain.costs[5:25]), typical(drain.costs[-22:-2]))


@pytest.mark.slow
def test_a_poll_beside_an_old_open_transaction_reads_the_entry_of_each_ended_task_once():
    if not is_postgres():
        return  # SQLite keeps no dead rows
    count = 2_000
    tasks.noop.send_many({} for _ in range(count))
    WorkerStore(WorkerConfig.of("default"), RUNNERS[0]).register()
    scan = QueueScan("default", RUNNERS[0].worker_id, [False])

    with old_transaction():
        Drain(exchange_of()).make_turns()
        tasks.noop.send()
        before = cost_so_far()
        result = scan.run()
        after = cost_so_far()

    assert [queue.queue_name for queue in result.queues[0]] == ["default"]
    assert count <= after.entries - before.entries < 1.5 * count


@pytest.mark.slow
def test_a_new_task_with_a_higher_priority_is_soon_claimed():
    """A claim starts at the first row after ten times as long as the last such claim took."""
    tasks.noop.send_many({} for _ in range(2_000))
    drain = Drain(exchange_of())

    for priority in (1, 2, 3):
        drain.make_turns(1)
        urgent = {tasks.noop.with_options(priority=priority).send().id for _ in range(2)}
        while not urgent <= {claimed.task_id for claimed in drain.claims}:
            assert drain.make_turns(1), "all other tasks were claimed first"

    drain.make_turns()
    drain.assert_all_ran_once()


@contextmanager
def sent_but_not_committed(count):
    """Send tasks on another connection, which commits when the block ends; yield their ids."""
    ids, is_sent, may_commit = [], threading.Event(), threading.Event()

    def send():
        with transaction.atomic():
            ids.extend(handle.id for handle in tasks.noop.send_many({} for _ in range(count)))
            is_sent.set()
            may_commit.wait(300)
        connections.close_all()

    thread = threading.Thread(target=send)
    thread.start()
    assert is_sent.wait(20)
    try:
        yield ids
    finally:
        may_commit.set()
        thread.join(60)


@pytest.mark.slow
def test_a_task_committed_behind_the_mark_is_claimed_before_the_drain_ends():
    """Claims from the mark do not see it; the next claim that starts at the first row does."""
    if not is_postgres():
        return  # SQLite has one writer at a time
    tasks.noop.send_many({} for _ in range(100))
    drain = Drain(exchange_of())
    with sent_but_not_committed(3) as late:
        tasks.noop.send_many({} for _ in range(2_000))
        drain.make_turns(5)
    assert datetime.fromisoformat(drain.claims[-1].enqueued_at) > Task.objects.get(pk=late[-1]).enqueued_at
    passed = len(drain.claims)
    assert not {claimed.task_id for claimed in drain.claims} & set(late)

    def send_more():
        """Send more, so that no claim gets less than it asks for, after which the next would start at the first row."""
        tasks.noop.send_many({} for _ in range(BATCH))

    until = time.monotonic() + 60
    while not set(late) <= {claimed.task_id for claimed in drain.claims[passed:]}:
        assert time.monotonic() < until, "tasks behind the mark starve while there are others"
        drain.make_turns(1, and_then=send_more)

    drain.make_turns()
    drain.assert_all_ran_once()


@pytest.mark.slow
def test_tasks_that_become_due_or_are_released_behind_the_mark_are_claimed():
    tasks.noop.send_many({} for _ in range(1_000))
    deferred = [handle.id for handle in tasks.noop.with_options(run_after=timedelta(days=1)).send_many([{}] * 5)]
    drain = Drain(exchange_of(), free_slots=20)
    drain.make_turns(5)
    back, drain.held, drain.claims = drain.held[:7], drain.held[7:], drain.claims[:-20] + drain.held[7:]

    Task.objects.revert_start(back, RUNNERS[0].worker_id)
    Task.objects.filter(pk__in=deferred).update(enqueued_at=AGES_AGO)
    with transaction.atomic():
        assert Task.objects.make_due_claimable() == 5
    drain.make_turns()

    drain.assert_all_ran_once()


# Concurrent claims.


class Worker:
    """Drains in a thread until senders stop and no task is left; sometimes releases tasks that have not begun."""

    def __init__(self, runner, start, is_quiet, queues):
        self.runner, self.start, self.is_quiet, self.rng = runner, start, is_quiet, Random(runner.pid)
        self.queues = queues
        self.begun, self.held, self.was_empty = [], [], False

    def work(self):
        with own_connection("default", self.runner.worker_id, is_busy=True):
            exchange = self.make_exchange()
            self.start.wait(20)
            while not self.turn(exchange):
                pass

    def make_exchange(self):
        return exchange_of(self.runner)

    def turn(self, exchange):
        was_quiet = self.is_quiet.is_set()
        claims = exchange.run(ends_of(self.held), self.rng.randint(1, 2 * BATCH), self.queues)
        back = claims[::2] if self.rng.random() < 0.2 else []
        assert Task.objects.revert_start(back, self.runner.worker_id) == len(back)
        self.held = [claimed for claimed in claims if claimed not in back]
        self.begun += self.held
        # With several queues, a claim may get nothing because other workers took the tasks: claim once more.
        is_done, self.was_empty = was_quiet and not claims and self.was_empty, not claims
        return is_done


def disturb(seed):
    """Send in slow transactions, and change priorities of pending tasks."""
    rng = Random(seed)
    for _ in range(40):
        with transaction.atomic():
            priority = rng.randint(-1, 1)
            tasks.noop.with_options(priority=priority).send_many([{}] * rng.randint(1, 20))
            some = Task.objects.pending().order_by("?").lock().values_list("pk", flat=True)[:5]
            Task.objects.filter(pk__in=list(some)).update(priority=F("priority") + rng.choice([-1, 1]))
            time.sleep(rng.random() / 200)


class Thread(threading.Thread):
    """Keeps an exception raised in it."""

    error = None

    def run(self):
        try:
            super().run()
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()


def run_beside_senders(kind, queues):
    """Let a worker of each runner drain while tasks are sent; return the workers. Each task has begun once."""
    start, is_quiet = threading.Barrier(len(RUNNERS)), threading.Event()
    workers = [kind(runner, start, is_quiet, queues) for runner in RUNNERS]
    working = [Thread(target=worker.work) for worker in workers]
    sending = [Thread(target=disturb, args=[seed]) for seed in range(2)] if is_postgres() else []

    for thread in [*working, *sending]:
        thread.start()
    for thread in sending:
        thread.join(120)
    is_quiet.set()
    for thread in working:
        thread.join(120)

    assert [thread.error for thread in [*working, *sending] if thread.error] == []
    assert not Task.objects.exclude(status=TaskStatus.COMPLETED).exists()
    begun = [claimed.task_id for worker in workers for claimed in worker.begun]
    assert Counter(begun) == Counter(Task.objects.values_list("pk", flat=True))
    return workers


@pytest.mark.slow
@pytest.mark.parametrize("queues", [["default"], ["default", "emails"]], ids=["one queue", "several queues"])
def test_concurrent_runners_claim_each_task_once_and_leave_none(queues):
    """Three workers drain despite equal times, changing priorities, late commits and released tasks."""
    for queue in queues:
        some = tasks.noop.with_options(queue_name=queue)
        some.send_many({} for _ in range((3_000 if is_postgres() else 300) // len(queues)))
    Task.objects.update(enqueued_at=AGES_AGO)  # all rows have the same time
    workers = run_beside_senders(Worker, queues)

    begun = sum(len(worker.begun) for worker in workers)
    assert TaskAttempt.objects.filter(attempt=1).count() == TaskAttempt.objects.count() == begun
    assert sum(bool(worker.begun) for worker in workers) > 1 or not is_postgres(), "only one runner claimed tasks"
