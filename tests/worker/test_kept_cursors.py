"""While an old transaction keeps index entries of ended tasks, claims begin at kept cursors and read few of them."""

import pytest
from django.db import connection, connections
from django.utils import timezone

from horsies_django.models import Queue, Task
from horsies_django.models.claim import cursors
from horsies_django.models.claim.complete_and_claim import compile_for
from horsies_django.models.claim.cursors import KeptCursors
from horsies_django.models.queue_scan import DueQueue
from horsies_django.worker.config import Until
from tests.conftest import wait_until
from tests.jobs import limited, tasks
from tests.worker import test_claim_cost
from tests.worker.queues.test_limits import claim_ten
from tests.worker.test_claim_cost import (
    AGES_AGO,
    BATCH,
    RUNNERS,
    Drain,
    Worker,
    cost_so_far,
    ends_of,
    old_transaction,
    run_beside_senders,
    run_sql,
    typical,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite keeps no dead rows"),
]

busy_connection = test_claim_cost.busy_connection  # a fixture for each test here too

#: Tasks that have ended since the old transaction began.
ENDED = 5_000

#: Index entries that a claim reads at most, if it reads none of them.
FEW = 100


@pytest.fixture
def reviews_at_once(monkeypatch):
    """Let each review decide whether cursors are kept, from the same counts; claims from the first row are rare."""
    monkeypatch.setattr(cursors, "_SLOW", 0.0)
    monkeypatch.setattr(cursors, "_PAUSE", 0.0)
    monkeypatch.setattr(cursors, "_WAITS", (3_600.0, 3_600.0))


@pytest.fixture
def always_kept(reviews_at_once, monkeypatch):
    """Let claims keep cursors however few entries they read."""
    monkeypatch.setattr(cursors, "_MANY_ENTRIES", -1.0)


def exchange_with(kept, runner):
    return compile_for(Task.objects.all(), runner, is_async=False, cursors=kept)


class KeepingDrain(Drain):
    """A drain with its own cursors."""

    def __init__(self, runner=RUNNERS[0], **options):
        self.kept = KeptCursors("default")
        super().__init__(exchange_with(self.kept, runner), **options)

    def review(self, *due):
        """Do what a poll does, which has seen these due tasks. The server has the counts of the last claim."""
        cost_so_far()
        self.kept.review([DueQueue(queue, False, priority, at.isoformat()) for queue, priority, at in due])

    @property
    def priorities(self):
        """The priorities of the queue ``default`` from whose cursors claims begin."""
        return [priority for priority, _ in self.kept.of("default")]


def kept_drain(**options):
    """Return a drain that keeps a cursor for the queue ``default`` and the priority 0."""
    drain = KeepingDrain(**options)
    trickle(drain, 4 * len(drain.queues))  # of two queues, every second claim is together
    assert drain.priorities == [0]
    return drain


def trickle(drain, turns=12):
    """Claim single tasks, as a worker that keeps up; return the cost of each turn."""
    before = len(drain.costs)
    for _ in range(turns):
        tasks.noop.send()
        assert len(drain.make_turns(1)) == 1
        drain.review()
    return drain.costs[before:]


def keeping_store(**options):
    """Return the store and the pool of a worker that has polled and claimed single tasks."""
    tasks.noop.send()
    store, pool, _ = claim_ten(**options)
    for _ in range(4):
        tasks.noop.send()
        cost_so_far()
        store.scan([pool])
        assert len(store.complete_and_claim(pool, [], 10)) == 1
    return store, pool


def send_late():
    """Send a task that sorts long before the cursor."""
    late = tasks.noop.send().id
    Task.objects.filter(pk=late).update(enqueued_at=AGES_AGO)
    return late


def ids_of(claims):
    return [claimed.task_id for claimed in claims]


@pytest.mark.slow
def test_a_worker_that_keeps_up_reads_few_entries_beside_an_old_transaction_and_so_does_the_next_one(request):
    tasks.noop.send_many({} for _ in range(ENDED))
    Task.objects.update(enqueued_at=AGES_AGO)  # not just before the cursor, from where claims look for late tasks
    run_sql("VACUUM horsies_tasks")
    with old_transaction():
        KeepingDrain().make_turns()
        request.getfixturevalue("reviews_at_once")
        costs = trickle(KeepingDrain())
        of_the_next = trickle(KeepingDrain(RUNNERS[1]))

    assert costs[0].entries > ENDED < of_the_next[0].entries  # its claims decide whether cursors are kept
    assert costs[-1].entries < FEW
    assert 4 * typical(costs[-4:]).buffers < costs[0].buffers
    assert of_the_next[-1].entries < FEW


@pytest.mark.usefixtures("reviews_at_once")
def test_no_cursor_is_kept_while_claims_read_few_entries():
    tasks.noop.send_many({} for _ in range(ENDED))
    drain = KeepingDrain()
    drain.make_turns(10, and_then=drain.review)  # claims read the entries of all that these took, at most

    assert drain.priorities == []


@pytest.mark.usefixtures("always_kept")
def test_cursors_are_forgotten_once_claims_from_the_first_row_are_quick(monkeypatch):
    drain = kept_drain()
    monkeypatch.setattr(cursors, "_SLOW", 3_600.0)

    for _ in range(2):  # one may be quick by chance
        trickle(drain, 1)
        assert drain.priorities == [0]
        late = send_late()
        drain.review(("default", 0, AGES_AGO))
        assert ids_of(drain.make_turns(1)) == [late]

    assert drain.priorities == []


@pytest.mark.usefixtures("always_kept")
def test_a_task_behind_its_cursor_is_claimed_once_a_poll_has_seen_it():
    store, pool = keeping_store()
    late = send_late()
    assert store.complete_and_claim(pool, [], 10) == []

    store.scan([pool])

    assert ids_of(store.complete_and_claim(pool, [], 10)) == [late]


@pytest.mark.usefixtures("always_kept")
def test_higher_tasks_that_fill_the_next_claims_do_not_hide_a_task_behind_its_cursor():
    drain = kept_drain()
    drain.free_slots = 1
    late = send_late()
    drain.review(("default", 0, AGES_AGO))

    for _ in range(3):
        urgent = tasks.noop.with_options(priority=10).send()
        assert ids_of(drain.make_turns(1)) == [urgent.id]
        drain.review(("default", 10, timezone.now()))

    tasks.noop.send()
    assert ids_of(drain.make_turns(1)) == [late]


@pytest.mark.usefixtures("always_kept")
def test_a_drain_keeps_no_cursors():
    store, pool = keeping_store(until=Until.DRAINED)
    late = send_late()

    assert ids_of(store.complete_and_claim(pool, [], 10)) == [late]


@pytest.mark.usefixtures("always_kept")
@pytest.mark.parametrize("priority", [1, -1])
def test_a_task_of_another_priority_is_claimed_once_a_poll_has_seen_it(priority):
    drain = kept_drain()
    other = tasks.noop.with_options(priority=priority).send()

    drain.review(("default", priority, timezone.now()))

    assert ids_of(drain.make_turns(1)) == [other.id]
    tasks.noop.send()
    tasks.noop.with_options(priority=priority).send()
    assert [claimed.priority for claimed in drain.make_turns(1)] == sorted([0, priority], reverse=True)


@pytest.mark.usefixtures("always_kept")
def test_claims_from_another_queue_do_not_delay_a_task_behind_a_cursor():
    drain = kept_drain()
    late = send_late()
    drain.review(("default", 0, AGES_AGO))

    for _ in range(3):
        tasks.noop.with_options(queue_name="emails").send()
        assert len(drain.exchange.run([], BATCH, ["emails"])) == 1

    assert ids_of(drain.make_turns(1)) == [late]


@pytest.mark.usefixtures("always_kept")
def test_claims_of_several_queues_begin_at_the_cursors_of_each_while_the_worker_keeps_up():
    drain = kept_drain(queues=("default", "emails"))
    late = send_late()
    found = []
    for _ in range(8):
        sent = [tasks.noop.with_options(queue_name=name).send().id for name in ("default", "emails")]
        drain.exchange.run(ends_of(drain.held), 0, ())  # where a queue has limits, results are stored first
        drain.held = []
        found.append(ids_of(drain.make_turns(1)))
        drain.review()

    assert found[-1] == sent
    assert late not in ids_of(drain.claims)

    drain.review(("default", 0, AGES_AGO))
    assert ids_of(drain.make_turns(1)) == [late]


@pytest.mark.usefixtures("always_kept")
def test_claims_get_past_locked_rows():
    drain = kept_drain(free_slots=8)
    sent = [handle.id for handle in tasks.noop.send_many([{}] * 60)]
    another = connections["default"].copy()
    try:
        with another.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT id FROM horsies_tasks WHERE id = ANY(%s) FOR UPDATE", [sent[:40]])
            drain.make_turns(3)
    finally:
        another.close()

    assert ids_of(drain.claims[-20:]) == sent[40:]


@pytest.mark.usefixtures("always_kept")
def test_a_queue_with_limited_tasks_has_no_cursor():
    """A limit may release a task long after it was sent, and each end releases the next."""
    drain = kept_drain()
    limited.alone.send()
    drain.make_turns(1)
    late = send_late()

    assert ids_of(drain.make_turns(1)) == [late]
    trickle(drain, 3)
    assert drain.priorities == []


@pytest.mark.usefixtures("always_kept")
def test_a_paused_queue_gives_no_task():
    drain = kept_drain()
    Queue.objects.update_or_create(name="default", defaults={"paused": True})
    tasks.noop.send()

    assert drain.make_turns(1) == []


class PollingWorker(Worker):
    """Polls between claims, and ends when no task is left."""

    def make_exchange(self):
        self.kept = KeptCursors("default")
        return exchange_with(self.kept, self.runner)

    def turn(self, exchange):
        is_done = super().turn(exchange)
        due = Task.objects.next_up().values_list("queue_name", "priority", "enqueued_at").first()
        self.kept.review([DueQueue(due[0], False, due[1], due[2].isoformat())] if due else [])
        return is_done and not Task.objects.pending().exists()


@pytest.mark.slow
@pytest.mark.usefixtures("always_kept")
def test_concurrent_runners_claim_each_task_once_and_leave_none():
    """Three workers drain despite equal times, changing priorities, late commits and released tasks."""
    tasks.noop.send_many({} for _ in range(3_000))
    Task.objects.update(enqueued_at=AGES_AGO)

    run_beside_senders(PollingWorker, ["default"])


@pytest.mark.alone
@pytest.mark.slow
def test_a_worker_that_is_restarted_beside_a_long_transaction_soon_reads_few_entries_again(worker):
    ended = 100_000
    with old_transaction():
        for _ in range(ended // 20_000):
            tasks.noop.send_many({} for _ in range(20_000))
        first = worker("--processes", "1", "-v0")
        wait_until(lambda: not Task.objects.pending().exists(), limit=300, what="all tasks have ended")
        wait_until(lambda: entries_of_each_task(100) < ended / 2, limit=120, what="cursors are kept")
        first.stop()
        worker("--processes", "1", "-v0")
        wait_until(lambda: entries_of_each_task(100) < ended / 2, limit=120, what="cursors are kept again")


def entries_of_each_task(count):
    """Send and await tasks one by one, as for a worker that keeps up; return how many index entries each has cost.

    Polls, and the rare claims from the first row, read all entries too, by time: a few for all these tasks together.
    """
    before, scans = index_counts()
    for _ in range(count):
        assert tasks.noop.send().get(60).is_ok()
    # A worker tells the server what it has read once a second.
    wait_until(lambda: index_counts()[1] >= scans + count, what="the scans are counted")
    return (index_counts()[0] - before) / count


def index_counts():
    return cursors.postgres.entries_and_scans("default", "horsies_task_claim")
