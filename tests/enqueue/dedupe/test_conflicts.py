"""What happens to a unique call whose key another task holds."""

import uuid
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import TaskStatus, Unique, UniqueConflict
from horsies_django.models import Task
from tests.enqueue.dedupe import jobs
from tests.jobs import limited

pytestmark = pytest.mark.django_db

SKIP = jobs.note.with_options(unique=Unique(by=("name",)))
RAISE = jobs.note.with_options(unique=Unique(by=("name",), on_conflict="raise"))
REPLACE = jobs.note.with_options(unique=Unique(by=("name",), on_conflict="replace"))

SEND_METHODS = {
    "send": lambda job, *args: job.send(*args).id,
    "asend": lambda job, *args: async_to_sync(job.asend)(*args).id,
    "schedule": lambda job, *args: job.schedule(60, *args).id,
    "enqueue": lambda job, *args: uuid.UUID(job.enqueue(*args).id),
    "aenqueue": lambda job, *args: uuid.UUID(async_to_sync(job.aenqueue)(*args).id),
    "send_many": lambda job, *args: job.send_many([dict(zip(("name", "text"), args, strict=True))])[0].id,
}


@pytest.fixture(params=SEND_METHODS)
def send(request):
    return SEND_METHODS[request.param]


def test_skip_returns_the_existing_task(send):
    first = send(SKIP, "a", "one")

    assert send(SKIP, "a", "two") == first
    row = Task.objects.get()
    assert "one" in (*row.args, *row.kwargs.values())
    assert SKIP.send("a").replayed is True
    assert send(SKIP, "b", "two") != first


def test_raise_names_the_existing_task_and_leaves_the_transaction_usable(send):
    first = send(RAISE, "a", "one")

    with pytest.raises(UniqueConflict, match=f"^UNIQUE_CONFLICT: task {first}, which is PENDING, has the") as caught:
        send(RAISE, "a", "two")

    error = caught.value
    assert (error.task_id, error.status, error.unique_key) == (
        first,
        "PENDING",
        'tests.enqueue.dedupe.jobs.note {"name":"a"}',
    )
    assert Task.objects.count() == 1


def test_replace_gives_the_pending_task_the_new_arguments(send):
    first = send(REPLACE, "a", "one")

    assert send(REPLACE, "a", "two") == first
    row = Task.objects.get()
    assert "two" in (*row.args, *row.kwargs.values())


def test_replace_applies_the_options_and_the_time_of_the_new_call():
    handle = REPLACE.with_options(priority=5, metadata={"trace": 1}).schedule(3_600, "a", "one")
    sent_at = Task.objects.get().sent_at

    REPLACE.with_options(priority=-5, queue_name="other", timeout=3).send("a", "now")

    row = Task.objects.get(pk=handle.id)
    assert (row.priority, row.queue_name, row.timeout, row.metadata) == (-5, "other", 3, None)
    assert (row.deferred, row.run_after, row.sent_at) == (False, None, sent_at)
    assert row.enqueued_at < sent_at + timedelta(minutes=30)
    eta = timezone.now() + timedelta(days=1)
    result = REPLACE.with_options(run_after=eta).enqueue("a", "tomorrow")
    row.refresh_from_db()
    assert (result.id, result.args) == (str(handle.id), ["a", "tomorrow"])
    assert (row.deferred, row.run_after.timestamp()) == (True, eta.timestamp())


def test_a_replaced_task_keeps_its_place_in_the_queue():
    handle = REPLACE.send("a", "one")
    Task.objects.update(enqueued_at=F("enqueued_at") - timedelta(hours=1))
    enqueued_at = Task.objects.get().enqueued_at

    REPLACE.send("a", "two")

    assert Task.objects.get(pk=handle.id).enqueued_at == enqueued_at


def test_replace_clears_the_retries_the_checkpoint_and_the_progress():
    job = jobs.note.with_options(unique=Unique(by=("name",), until="done", on_conflict="replace"))
    job.send("a", "one")
    later = timezone.now() + timedelta(hours=1)
    Task.objects.update(
        attempt=2, retry_count=2, checkpoint={"page": 7}, progress=[1, 2], next_retry_at=later, enqueued_at=later
    )

    job.send("a", "two")

    row = Task.objects.get()
    assert (row.attempt, row.retry_count, row.checkpoint, row.progress, row.next_retry_at) == (2, 0, None, None, None)
    assert row.enqueued_at < later


def test_replace_raises_if_the_task_is_running():
    job = jobs.note.with_options(unique=Unique(by=("name",), until="done", on_conflict="replace"))
    handle = job.send("a", "one")
    with transaction.atomic():
        Task.objects.claim("w", start=1)

    with pytest.raises(UniqueConflict, match="only one that waits can be replaced") as caught:
        job.send("a", "two")

    assert (caught.value.task_id, caught.value.status) == (handle.id, TaskStatus.RUNNING)


@pytest.mark.parametrize("state", ["claimed", "running"])
def test_replace_creates_a_second_task_if_a_worker_has_claimed_the_first(state):
    first = REPLACE.send("a", "one")
    with transaction.atomic():
        Task.objects.claim("w", start=int(state == "running"), prefetch=1)

    second = REPLACE.send("a", "two")

    assert (second.replayed, REPLACE.send("a", "three").id) == (False, second.id)
    assert {row.pk: row.args[1] for row in Task.objects.all()} == {first.id: "one", second.id: "three"}


def test_a_replaced_task_stays_blocked_by_its_limit():
    job = limited.one_per_user.with_options(unique=Unique(by=("user",), on_conflict="replace"))
    job.send("a")

    job.send("a")

    row = Task.objects.get()
    assert (row.limit_key, row.blocked, row.deferred) == (f"{job.module_path}:a", True, True)
    assert row.released_at is None  # it has been blocked since it was sent


def test_a_blocked_task_can_run_since_a_call_without_a_limit_replaced_it():
    handle = REPLACE.send("a", "one")
    Task.objects.update(limit_key="k", blocked=True, deferred=True, enqueued_at=F("enqueued_at") - timedelta(hours=1))
    before = Task.objects.get()

    REPLACE.send("a", "two")

    row = Task.objects.get(pk=handle.id)
    assert (row.blocked, row.enqueued_at) == (False, before.enqueued_at)
    assert row.due_at >= before.sent_at
    REPLACE.send("a", "three")
    assert Task.objects.get().due_at == row.due_at


# Debounce and throttle.


def test_each_debounced_call_postpones_its_task():
    job = jobs.note.with_options(unique=Unique.debounce("1h", by=("name",)))
    first = job.send("a", "one")
    due = Task.objects.get().enqueued_at
    Task.objects.update(enqueued_at=due - timedelta(minutes=50), run_after=due - timedelta(minutes=50))

    assert job.send("a", "two") == first

    row = Task.objects.get()
    assert (row.args, row.deferred) == (["a", "two"], True)
    assert row.enqueued_at == row.run_after >= due


def test_max_wait_caps_how_long_calls_postpone_a_debounced_task():
    job = jobs.note.with_options(unique=Unique.debounce("1h", max_wait="2h", by=("name",)))
    job.send("a", "one")
    assert Task.objects.get().enqueued_at - Task.objects.get().sent_at < timedelta(hours=1, minutes=1)
    Task.objects.update(sent_at=F("sent_at") - timedelta(minutes=90))

    job.send("a", "two")

    row = Task.objects.get()
    assert row.enqueued_at == row.run_after == row.sent_at + timedelta(hours=2)


def test_a_throttled_task_runs_for_the_first_call_of_each_period(drain):
    job = jobs.note.with_options(unique=Unique.throttle(60, by=("name",)))
    first = job.send("a", "one")
    drain()

    second = job.send("a", "two")
    Task.objects.update(unique_expires_at=F("unique_expires_at") - timedelta(seconds=61))
    third = job.send("a", "three")

    assert (second.id, second.replayed) == (first.id, True)
    assert third.replayed is False
    assert Task.objects.get(pk=first.id).unique_until == "released"
    assert job.send("a", "four").id == third.id


# Periods.


@pytest.mark.parametrize("until", [None, "started", "done", "success"])
def test_a_new_task_is_allowed_after_the_period_though_the_first_is_pending(until):
    job = jobs.note.with_options(unique=Unique(by=("name",), until=until, period="1h"))
    first = job.send("a", "one")
    assert job.send("a", "two").id == first.id
    Task.objects.update(unique_expires_at=F("unique_expires_at") - timedelta(minutes=61))

    second = job.send("a", "three")

    assert second.replayed is False
    assert job.send("a", "four").id == second.id
    assert set(Task.objects.values_list("status", "unique_until")) == {
        ("PENDING", "released"),
        ("PENDING", until or "period"),
    }


def test_the_period_of_a_delayed_call_begins_when_it_is_due():
    job = jobs.note.with_options(unique=Unique(by=("name",), period="1h"))
    by_delay, by_time = job.schedule(7_200, "a"), job.schedule(timezone.now() + timedelta(hours=2), "b")
    past = job.schedule(timezone.now() - timedelta(hours=2), "c")

    rows = Task.objects.in_bulk()
    for handle, hours in ((by_delay, 3), (by_time, 3), (past, 1)):
        row = rows[handle.id]
        assert abs(row.unique_expires_at - row.sent_at - timedelta(hours=hours)) < timedelta(minutes=1)
    assert job.with_options(run_after=timedelta(hours=1)).enqueue("d").status == "READY"


# Task ids, transactions, and many calls.


def test_a_task_id_takes_precedence_over_the_unique_key():
    task_id = uuid.uuid4()
    job = RAISE.with_options(task_id=task_id)

    first, again = job.send("a", "one"), job.send("a", "one")

    assert (first.id, again.id, again.replayed) == (task_id, task_id, True)
    with pytest.raises(UniqueConflict):
        RAISE.send("a", "two")


@pytest.mark.django_db(transaction=True)
def test_a_unique_send_takes_one_insert_as_a_plain_one_does():
    with CaptureQueriesContext(connection) as alone:
        SKIP.send("a")
    with transaction.atomic(), CaptureQueriesContext(connection) as inside:
        RAISE.send("b")
        REPLACE.send("c")

    assert [query["sql"].split()[0] for query in alone] == ["INSERT"]
    assert [query["sql"].split()[0] for query in inside] == ["INSERT", "INSERT"]


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_send_leaves_its_key_free():
    with transaction.atomic():
        SKIP.send("a")
        transaction.set_rollback(True)

    assert SKIP.send("a").replayed is False


def test_send_many_treats_each_call_as_a_single_send():
    existing = SKIP.send("b")

    handles = SKIP.send_many({"name": key, "text": str(number)} for number, key in enumerate("abcab"))

    assert [handle.replayed for handle in handles] == [False, True, False, True, True]
    assert (handles[0], handles[1], handles[4]) == (handles[3], existing, existing)
    assert Task.objects.count() == 3
    handles = REPLACE.send_many({"name": f"r{key}", "text": str(number)} for number, key in enumerate("aab"))
    assert [handle.replayed for handle in handles] == [False, True, False]
    assert Task.objects.get(pk=handles[0].id).kwargs["text"] == "1"
    with pytest.raises(UniqueConflict):
        RAISE.send_many({"name": key} for key in ("x", "y", "x"))
    assert Task.objects.count() == 5
    assert SKIP.send_many([]) == []


def test_send_many_takes_over_an_expired_key():
    job = jobs.note.with_options(unique=Unique.throttle(60, by=("name",)))
    job.send("a")
    Task.objects.update(unique_expires_at=F("unique_expires_at") - timedelta(seconds=61))

    handles = job.send_many([{"name": "a"}, {"name": "a"}, {"name": "b"}])

    assert [handle.replayed for handle in handles] == [False, True, False]


def test_the_query_for_the_holder_of_a_key_uses_the_index():
    """The index has a long condition: PostgreSQL must see that the query implies it."""
    SKIP.send("a")
    rows = Task.objects.holding_unique_key("k")
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")

    assert "horsies_live_task_has_its_key_alone" in rows.explain()


def test_the_task_of_a_framework_result_can_be_enqueued_with_other_arguments():
    from horsies_django.core.compat import default_task_backend

    job = jobs.index
    first = job.send("a")

    task = default_task_backend.get_result(str(first.id)).task

    assert task.enqueue("b").id != str(first.id)
    assert task.enqueue("a").id == str(first.id)
