"""While an old transaction keeps index entries of ended tasks, claims begin at kept cursors and read few of them."""

import threading
from collections import Counter
from random import Random

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import ClaimCursor, Queue, Task
from horsies_django.models.claim import cursors
from tests.conftest import wait_until
from tests.jobs import limited, tasks
from tests.worker.queues.test_limits import claim_ten
from tests.worker.test_claim_cost import (
    AGES_AGO,
    BATCH,
    RUNNERS,
    Drain,
    Thread,
    Worker,
    busy_connection,  # noqa: F401  # a fixture, which pytest finds by name
    cost_so_far,
    disturb,
    exchange_of,
    old_transaction,
    run_sql,
    typical,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite keeps no dead rows"),
]

#: Tasks that have ended since the old transaction began.
ENDED = 5_000

#: Index entries that a claim reads at most, if it reads none of them.
FEW = 100


@pytest.fixture
def counts_each_time(monkeypatch):
    """Let each claim decide whether cursors are kept, from the same counts; claims from the first row are rare."""
    monkeypatch.setattr(cursors, "_SLOW", 0.0)
    monkeypatch.setattr(cursors, "_PAUSE", 0.0)
    monkeypatch.setattr(cursors, "_WAITS", (3_600.0, 3_600.0))


@pytest.fixture
def always_kept(counts_each_time, monkeypatch):
    """Let claims keep cursors however few entries they read."""
    monkeypatch.setattr(cursors, "_MANY_ENTRIES", -1.0)


def kept_drain(queues=("default",)):
    """Return a drain with a cursor for each queue. The first few claims decide to keep them."""
    drain = Drain(exchange_of(), queues=queues)
    for _ in range(4):
        for queue in queues:
            tasks.noop.with_options(queue_name=queue).send()
        drain.make_turns(1)
    return drain


def trickle(drain, turns=12):
    """Claim single tasks, as a worker that keeps up; return the cost of each turn."""
    before = len(drain.costs)
    for _ in range(turns):
        tasks.noop.send()
        assert len(drain.make_turns(1)) == 1
    return drain.costs[before:]


def test_a_worker_that_keeps_up_reads_few_entries_beside_an_old_transaction_and_so_does_the_next_one(request):
    tasks.noop.send_many({} for _ in range(ENDED))
    Task.objects.update(enqueued_at=AGES_AGO)  # not just before the cursor, from where claims look for late tasks
    run_sql("VACUUM horsies_tasks")
    with old_transaction():
        Drain(exchange_of()).make_turns()
        request.getfixturevalue("counts_each_time")
        drain = Drain(exchange_of())

        costs = trickle(drain)
        of_the_next = trickle(Drain(exchange_of(RUNNERS[1])), 1)

    assert costs[0].entries > ENDED
    assert costs[-1].entries < FEW
    assert 4 * typical(costs[-4:]).buffers < costs[0].buffers
    assert of_the_next[0].entries < FEW


@pytest.mark.usefixtures("counts_each_time")
def test_cursors_are_forgotten_once_a_claim_from_the_first_row_is_quick(monkeypatch):
    drain = Drain(exchange_of())
    with old_transaction():
        tasks.noop.send_many({} for _ in range(ENDED))
        drain.make_turns()
        trickle(drain)
        assert ClaimCursor.objects.get().priority == 0

    run_sql("VACUUM horsies_tasks")
    monkeypatch.setattr(cursors, "_SLOW", 3_600.0)
    monkeypatch.setattr(cursors, "_WAITS", (0.0, 0.0))
    drain = Drain(exchange_of())  # knows the cursor
    trickle(drain)

    assert not ClaimCursor.objects.exists()
    assert max(cost.entries for cost in trickle(drain)) < FEW


@pytest.mark.usefixtures("counts_each_time")
def test_no_cursor_is_kept_while_claims_read_few_entries():
    tasks.noop.send_many({} for _ in range(ENDED))
    drain = Drain(exchange_of())
    drain.make_turns(ENDED // BATCH // 2)

    assert not ClaimCursor.objects.exists()


@pytest.mark.usefixtures("always_kept")
@pytest.mark.parametrize("queues", [["default"], ["default", "emails", "reports"]], ids=["one queue", "several queues"])
def test_tasks_of_other_priorities_and_queues_are_claimed_in_the_order_of_claims(queues):
    drain = kept_drain(queues)
    rng = Random(7)
    for _ in range(60):
        some = tasks.noop.with_options(priority=rng.randint(-2, 2), queue_name=rng.choice(queues))
        some.send_many([{}] * rng.randint(1, 9))
    tasks.noop.with_options(priority=100, queue_name=queues[-1]).send_many([{}] * 10)
    wanted = Task.objects.filter(queue_name__in=queues).next_up()
    in_order = list(wanted.values_list("pk", flat=True))
    drain.claims.clear()

    drain.make_turns()

    assert [claimed.task_id for claimed in drain.claims] == in_order


@pytest.mark.usefixtures("always_kept")
def test_a_task_behind_its_cursor_is_claimed_from_the_first_row(monkeypatch):
    drain = kept_drain()
    late = tasks.noop.send()
    Task.objects.filter(pk=late.id).update(enqueued_at=AGES_AGO)
    assert drain.make_turns(1) == []

    monkeypatch.setattr(cursors, "_WAITS", (0.0, 0.0))
    drain = Drain(exchange_of())  # knows the cursor, and reads from the first row at once

    assert [claimed.task_id for claimed in drain.make_turns(1)] == [late.id]


@pytest.mark.usefixtures("always_kept")
def test_a_task_behind_its_cursor_is_claimed_once_a_poll_has_seen_it():
    tasks.noop.send()
    store, pool, _ = claim_ten()
    for _ in range(4):
        tasks.noop.send()
        cost_so_far()  # so that the server has the counts of the last claim
        assert len(store.complete_and_claim(pool, [], 10)) == 1
    late = tasks.noop.send()
    Task.objects.filter(pk=late.id).update(enqueued_at=AGES_AGO)
    assert store.complete_and_claim(pool, [], 10) == []

    store.scan([pool])

    assert [claimed.task_id for claimed in store.complete_and_claim(pool, [], 10)] == [late.id]


@pytest.mark.usefixtures("always_kept")
def test_claims_from_a_queue_with_limited_tasks_begin_at_the_first_row():
    """A limit may release a task long after it was sent, and each end releases the next."""
    drain = kept_drain()
    limited.alone.send()
    drain.make_turns(1)
    late = tasks.noop.send()
    Task.objects.filter(pk=late.id).update(enqueued_at=AGES_AGO)

    assert [claimed.task_id for claimed in drain.make_turns(1)] == [late.id]


@pytest.mark.usefixtures("always_kept")
def test_a_queue_gives_no_more_tasks_than_its_cap_whatever_their_priorities():
    drain = kept_drain(["default", "emails"])
    for priority in (2, 1, 0, -1):
        for queue in ("default", "emails"):
            tasks.noop.with_options(priority=priority, queue_name=queue).send_many([{}] * 5)

    claims = drain.exchange.run([], BATCH, ["default", "emails"], {"default": 7})

    assert Counter(claimed.queue_name for claimed in claims) == {"default": 7, "emails": 20}


@pytest.mark.usefixtures("always_kept")
def test_a_paused_queue_gives_no_task():
    drain = kept_drain()
    Queue.objects.update_or_create(name="default", defaults={"paused": True})
    tasks.noop.send()

    assert drain.make_turns(1) == []


class PatientWorker(Worker):
    """Ends when no task is left: a claim that finds none may not have looked behind the cursors."""

    def turn(self, exchange):
        return super().turn(exchange) and not Task.objects.pending().exists()


@pytest.mark.slow
@pytest.mark.usefixtures("always_kept")
@pytest.mark.parametrize("queues", [["default"], ["default", "emails"]], ids=["one queue", "several queues"])
def test_concurrent_runners_claim_each_task_once_and_leave_none(queues, monkeypatch):
    """Three workers drain despite equal times, changing priorities, late commits and released tasks."""
    monkeypatch.setattr(cursors, "_WAITS", (0.05, 0.05))
    for queue in queues:
        tasks.noop.with_options(queue_name=queue).send_many({} for _ in range(3_000 // len(queues)))
    Task.objects.update(enqueued_at=AGES_AGO)
    start, is_quiet = threading.Barrier(len(RUNNERS)), threading.Event()
    workers = [PatientWorker(runner, start, is_quiet, queues) for runner in RUNNERS]
    working = [Thread(target=worker.work) for worker in workers]
    sending = [Thread(target=disturb, args=[seed]) for seed in range(2)]

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


@pytest.mark.slow
def test_a_worker_that_is_restarted_beside_a_long_transaction_reads_few_entries_for_each_task(worker):
    ended = 60_000
    with old_transaction():
        for _ in range(ended // 20_000):
            tasks.noop.send_many({} for _ in range(20_000))
        first = worker("--processes", "1", "-v0")
        wait_until(lambda: not Task.objects.pending().exists(), limit=300, what="all tasks have ended")
        # Each task of its own, as for a worker that keeps up.
        wait_until(lambda: tasks.noop.send().get(60).is_ok() and ClaimCursor.objects.exists(), limit=120)

        entries = [entries_of_each_task()]
        first.stop()
        worker("--processes", "1", "-v0")
        entries.append(entries_of_each_task())

    print(f"{ended} dead entries; of each task {entries}")
    assert max(entries) < ended / 4


def entries_of_each_task(count=200):
    """Send and await tasks one by one; return how many entries of the index claims have read for each."""
    before, _ = cursors.postgres.entries_and_scans(connection, "horsies_task_claim")
    for _ in range(count):
        assert tasks.noop.send().get(60).is_ok()
    after, _ = cursors.postgres.entries_and_scans(connection, "horsies_task_claim")
    return (after - before) / count
