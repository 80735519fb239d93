"""The concurrency limiter: which tasks it admits, when, and at what cost."""

import time
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import Unique, models
from horsies_django.core.options import Options
from horsies_django.core.registry import registry
from horsies_django.core.status import TaskStatus
from horsies_django.db.clock import database_now
from horsies_django.models import Limit, Task, release_blocked
from horsies_django.models.claim.query import DUE_AT
from horsies_django.models.claims import Completion, WorkerInfo
from horsies_django.reaper.duties import run_pass
from horsies_django.testing import travel
from tests.conftest import wait_until
from tests.jobs import limited, tasks

pytestmark = pytest.mark.django_db(transaction=True)

TWO = "tests.jobs.limited.two_per_user:"
RUNNER = WorkerInfo("w", "host", 1)


def blocked(key=None):
    rows = Task.objects.blocked()
    return rows.filter(limit_key=TWO + key).count() if key else rows.count()


def admitted(key):
    return Task.objects.released().filter(limit_key=TWO + key).count()


def claim(count=10):
    with transaction.atomic():
        return Task.objects.filter(queue_name="default").claim("w", start=count)


def complete(claims):
    ends = [Completion(one.task_id, one.claim, '{"ok":null}') for one in claims]
    with transaction.atomic():
        Task.objects.complete(ends, RUNNER)
    release_blocked.release_all("default", {one.limit_key for one in claims})


def test_each_limit_key_admits_up_to_max_concurrency_tasks():
    for key in "aabab":
        limited.two_per_user.send(key)

    assert (admitted("a"), blocked("a"), admitted("b"), blocked("b")) == (2, 1, 2, 0)
    assert sorted(one.limit_key for one in claim()) == [TWO + "a"] * 2 + [TWO + "b"] * 2
    assert claim() == []


def test_a_completed_task_admits_the_next_one_in_claim_order():
    first = [limited.two_per_user.send("a").id for _ in range(2)]
    late = limited.two_per_user.with_options(priority=-5).send("a").id
    soon = limited.two_per_user.with_options(priority=5).send("a").id
    claims = claim()
    assert {one.task_id for one in claims} == set(first)

    complete(claims[:1])
    assert [one.task_id for one in claim()] == [soon]

    complete(claims[1:])
    assert [one.task_id for one in claim()] == [late]


def test_a_task_is_due_from_the_time_at_which_its_limit_let_it_go():
    first, second = (limited.one_per_user.send("a") for _ in range(2))
    with travel(minutes=30):
        first.cancel()

    row = Task.objects.annotate(sql_due_at=DUE_AT).get(pk=second.id)
    assert row.due_at == row.sql_due_at == row.released_at
    assert row.released_at - row.enqueued_at >= timedelta(minutes=30)
    unlimited = Task.objects.annotate(sql_due_at=DUE_AT).get(pk=tasks.add.send(1, 2).id)
    assert unlimited.due_at == unlimited.sql_due_at == unlimited.enqueued_at


def test_cancelling_a_blocked_task_fills_free_slots_of_its_limit_key():
    first, second, third = (limited.one_per_user.send("a") for _ in range(3))
    Task.objects.filter(pk=first.id).delete()  # which sends no notification

    second.cancel()

    assert Task.objects.released().get().pk == third.id


def test_a_call_without_a_limit_key_is_not_blocked():
    limited.one_per_user.send("a")
    limited.one_per_user.send("a")
    free = [limited.one_per_user.send("").id for _ in range(3)]

    assert {one.task_id for one in claim()} > set(free)
    assert Task.objects.filter(pk__in=free, limit_key=None, blocked=False, deferred=False).count() == 3


def test_send_many_computes_the_limit_key_of_each_call():
    sent = limited.one_per_user.send_many({"user": key} for key in ["a", "", "a", "b", "", "a"])

    rows = Task.objects.in_bulk([one.id for one in sent])
    assert [(rows[one.id].limit_key or "").rpartition(":")[2] for one in sent] == ["a", "", "a", "b", "", "a"]
    assert len(claim()) == 4
    assert blocked() == 2


def test_send_many_with_many_limit_keys_leaves_the_release_to_workers():
    keys = [f"{number:03}" for number in range(release_blocked.MAX_INLINE_KEYS + 10)]
    limited.two_per_user.send_many({"user": key} for key in keys * 3)
    assert blocked() == len(keys) * 3

    release_blocked.release_all("default", Limit.objects.due().values_list("pk", flat=True))

    assert blocked() == len(keys)
    assert not Limit.objects.due().exists()


def test_many_limit_keys_that_become_due_together_are_left_to_workers():
    keys = [f"{number:03}" for number in range(release_blocked.MAX_INLINE_KEYS + 10)]
    limited.two_per_user.send_many({"user": key} for key in keys)
    release_blocked.release_all("default", Limit.objects.due().values_list("pk", flat=True))
    Task.objects.update(deferred=True, enqueued_at=timezone.now() - timedelta(seconds=1))

    with transaction.atomic():
        assert Task.objects.make_due_claimable() == len(keys)

    assert blocked() == Limit.objects.due().count() == len(keys)


@pytest.mark.parametrize("is_retried", [False, True])
def test_due_or_retried_tasks_with_many_new_limit_keys_create_due_limits(is_retried):
    keys = [f"{number:03}" for number in range(release_blocked.MAX_INLINE_KEYS + 10)]
    due = limited.two_per_user.with_options(run_after=timezone.now() - timedelta(seconds=5))
    due.send_many({"user": key} for key in keys * 3)
    if is_retried:
        Task.objects.update(status=TaskStatus.CANCELLED, cancelled_at=timezone.now())
    assert not Limit.objects.exists()

    with transaction.atomic():
        assert (Task.objects.retry() if is_retried else Task.objects.make_due_claimable()) == len(keys) * 3

    assert Limit.objects.due().filter(max_concurrency=2, rate=None).count() == len(keys)
    release_blocked.release_all("default", Limit.objects.due().values_list("pk", flat=True))
    assert (blocked(), Task.objects.released().count()) == (len(keys), len(keys) * 2)


def test_a_send_in_a_long_transaction_delays_no_other_send_of_its_limit_key(other_connection):
    with transaction.atomic():
        limited.two_per_user.send("a")

        other_connection(partial(limited.two_per_user.send, "a"))
        other_connection(partial(limited.two_per_user.send, "a"))
        assert other_connection(partial(admitted, "a")) == 2

    assert (admitted("a"), blocked("a")) == (2, 1)


def test_a_rolled_back_send_uses_no_concurrency_slot():
    with transaction.atomic():
        limited.two_per_user.send("a")
        transaction.set_rollback(True)

    assert not Limit.objects.exists()
    assert not Task.objects.exists()


def test_a_delayed_task_counts_against_its_limit_only_once_it_is_due():
    limited.two_per_user.schedule(3_600, "a")
    limited.two_per_user.with_options(run_after=timezone.now() - timedelta(seconds=5)).send("a")
    assert (blocked(), Task.objects.deferred().count()) == (0, 2)

    with transaction.atomic():
        assert Task.objects.make_due_claimable() == 1
    assert admitted("a") == 1

    limited.two_per_user.send_many([{"user": "a"}] * 2)
    assert blocked("a") == 1
    Task.objects.scheduled().run_now()
    assert blocked("a") == 2


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("job", [limited.fails, limited.snoozes])
def test_a_task_waiting_for_a_retry_or_snooze_frees_its_concurrency_slot(job, drain):
    sent = [job.send("a") for _ in range(3)]

    drain()

    rows = [Task.objects.get(pk=one.id) for one in sent]
    assert [(row.status, row.deferred, row.blocked) for row in rows] == [("PENDING", True, False)] * 3
    Task.objects.scheduled().run_now() or Task.objects.retrying().run_now()
    assert Task.objects.blocked().count() == 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_manual_cancels_retries_and_moves_respect_the_limit():
    sent = [limited.two_per_user.send("a") for _ in range(4)]
    claims = claim()
    rows = Task.objects.filter(pk__in=[one.id for one in sent])

    assert rows.filter(pk=claims[0].task_id).cancel(include_running=True) == 1
    assert (admitted("a"), blocked("a")) == (2, 1)

    assert rows.filter(pk=claims[0].task_id).retry() == 1
    assert (admitted("a"), blocked("a")) == (2, 2)

    assert rows.blocked().move(priority=7) == 2
    assert (admitted("a"), blocked("a")) == (2, 2)

    assert rows.cancel() == 3  # all but the running one
    assert (admitted("a"), blocked("a")) == (1, 0)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_reverted_start_keeps_its_concurrency_slot_and_an_expired_task_frees_it():
    [limited.two_per_user.with_options(good_until=timezone.now() + timedelta(hours=1)).send("a") for _ in range(3)]
    claims = claim()
    with transaction.atomic():
        Task.objects.revert_start(claims, "w")
    assert (admitted("a"), blocked("a")) == (2, 1)

    late = Task.objects.filter(pk=claims[0].task_id)
    late.update(good_until=timezone.now() - timedelta(hours=1))
    run_pass(Options())

    assert late.get().status == TaskStatus.EXPIRED
    assert (admitted("a"), blocked("a")) == (2, 0)


def test_tasks_past_their_deadline_free_their_slots_before_the_reaper_runs(other_connection):
    late = [
        limited.two_per_user.with_options(good_until=timezone.now() + timedelta(hours=1)).send("a") for _ in range(2)
    ]
    limited.two_per_user.send("a")
    assert abs(Limit.objects.get().next_at - Task.objects.get(pk=late[0].id).good_until) < timedelta(seconds=5)
    with CaptureQueriesContext(connection) as captured:
        limited.two_per_user.send("a")
    assert len(captured) == 2  # next_at is set already: no lock

    rows = Task.objects.filter(pk__in=[one.id for one in late])
    rows.update(good_until=timezone.now() - timedelta(seconds=1))
    Limit.objects.update(next_at=timezone.now())
    with transaction.atomic():
        list(rows.filter(pk=late[0].id).select_for_update())  # as if a worker started it at the last moment
        assert other_connection(lambda: release_blocked.release_all("default", [TWO + "a"])) == 1
    assert release_blocked.release_all("default", [TWO + "a"]) == 1

    assert len(claim()) == 2
    assert not Limit.objects.filter(next_at__isnull=False).exists()


def test_a_blocked_task_schedules_a_check_at_the_deadline_of_the_task_ahead():
    limited.one_per_user.with_options(good_until=timezone.now() + timedelta(hours=1)).send("a")
    assert Limit.objects.get().next_at is None

    limited.one_per_user.send("a")

    after = Limit.objects.get().next_at - Task.objects.exclude(good_until=None).get().good_until
    assert timedelta(0) <= after < timedelta(seconds=5)


def test_a_release_keeps_the_check_that_another_limit_has_scheduled():
    limited.one_per_user.with_options(good_until=timezone.now() + timedelta(hours=1)).send("a")
    limited.one_per_user.send("a")
    (checked,) = Limit.objects.all()
    limited.two_per_user.send("b")
    (first,) = claim()[1:]

    for _ in range(2):
        limited.two_per_user.send("b")
    complete([first])

    assert Limit.objects.get(pk=TWO + "b").released_at is not None
    assert Limit.objects.get(pk=checked.pk).next_at == checked.next_at


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_reaper_releases_blocked_tasks_after_a_sender_or_worker_died(monkeypatch):
    monkeypatch.setattr(transaction, "on_commit", lambda *args, **kwargs: None)
    for key in "abbbaac":
        limited.two_per_user.send(key)
    assert (blocked("a"), blocked("b"), blocked("c"), Limit.objects.count()) == (3, 3, 1, 0)

    run_pass(Options())
    assert (admitted("a"), blocked("a"), admitted("b"), blocked("b"), admitted("c")) == (2, 1, 2, 1, 1)

    Task.objects.filter(limit_key=TWO + "a", blocked=False).update(status="COMPLETED", completed_at=timezone.now())
    run_pass(Options())
    assert (admitted("a"), blocked("a")) == (1, 0)


def test_a_due_check_that_releases_no_task_is_not_due_again():
    limited.two_per_user.send("a")
    Limit.objects.update(next_at=timezone.now() - timedelta(seconds=1))

    assert release_blocked.release_all("default", Limit.objects.due().values_list("pk", flat=True)) == 0

    assert not Limit.objects.due().exists()


def test_blocked_tasks_of_removed_code_are_released(monkeypatch):
    monkeypatch.setattr(transaction, "on_commit", lambda *args, **kwargs: None)
    for _ in range(3):
        limited.two_per_user.send("a")
    Task.objects.update(task_name="tests.jobs.limited.gone")

    run_pass(Options())

    assert blocked("a") == 0


def test_blocked_tasks_that_a_release_leaves_for_their_number_are_due_at_once(monkeypatch):
    monkeypatch.setattr(release_blocked, "MAX_RELEASED", 2)
    with monkeypatch.context() as unnoticed:
        unnoticed.setattr(transaction, "on_commit", lambda *args, **kwargs: None)
        for _ in range(3):
            limited.two_per_user.send("a")
    Task.objects.update(task_name="tests.jobs.limited.gone")  # which has no limit

    released = [release_blocked.release("default", [TWO + "a"]) for _ in range(2)]

    assert [one.routes.total() for one in released] == [2, 1]
    assert [one.recheck_in for one in released] == [release_blocked.MIN_RECHECK, None]


def test_a_release_waits_for_a_locked_limit_and_then_leaves_it_to_the_reaper(monkeypatch, other_connection, caplog):
    limited.two_per_user.send("a")
    monkeypatch.setattr(release_blocked, "TRIES", 3)
    monkeypatch.setattr(release_blocked, "PAUSE", 0.1)
    with transaction.atomic():
        Limit.objects.select_for_update().get()
        began = time.monotonic()

        assert other_connection(partial(release_blocked.release_all, "default", [TWO + "a"])) == 0

    assert time.monotonic() - began >= 2 * 0.1
    assert f"limit stays locked key='{TWO}a': left to the reaper" in caplog.text


@pytest.mark.parametrize(("most", "expected"), [(4, (4, 1)), (1, (1, 4)), (None, (5, 0))])
def test_a_limit_that_changed_in_the_code_applies_to_its_backlog_without_a_send(most, expected):
    limited.two_per_user.send_many([{"user": "a"}] * 6)
    with limited.deployed(limited.two_per_user, max_concurrency=most):
        complete(claim(1))

    assert (admitted("a"), blocked("a")) == expected
    assert Limit.objects.get().max_concurrency == most


@pytest.mark.parametrize(
    ("job", "options"),
    [
        (limited.two_per_user, {"max_concurrency": 9}),
        (limited.two_per_user, {"max_concurrency": None}),
        (limited.rate_limited, {"rate_limit": None}),
    ],
)
def test_the_reaper_releases_the_backlog_of_a_raised_or_removed_limit_while_no_task_ends(job, options):
    job.send_many([{"user": "a"}] * 6)
    Limit.objects.update(next_at=timezone.now() + timedelta(hours=1))

    with limited.deployed(job, **options):
        run_pass(Options())

    assert blocked() == 0


def test_a_send_to_a_key_whose_limit_was_raised_releases_its_backlog_although_a_check_is_scheduled():
    limited.two_per_user.send_many([{"user": "a"}] * 4)
    Limit.objects.update(next_at=timezone.now() + timedelta(hours=1))

    with limited.deployed(limited.two_per_user, max_concurrency=4):
        limited.two_per_user.send("a")

    assert (admitted("a"), blocked("a")) == (4, 1)


def test_a_process_without_the_code_of_a_task_keeps_to_its_stored_limit(monkeypatch):
    limited.two_per_user.send_many([{"user": "a"}] * 4)
    monkeypatch.delitem(registry.tasks, "tests.jobs.limited.two_per_user")

    complete(claim(1))

    assert (admitted("a"), blocked("a")) == (2, 1)


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_override_outlasts_sends_and_releases_until_it_is_removed(drain):
    limited.two_per_user.send_many([{"user": "a"}] * 3)
    Task.objects.cancel()
    limit = Limit.objects.filter(pk=TWO + "a")

    limit.override(max_concurrency=0, rate=None)
    limited.two_per_user.send_many([{"user": "a"}] * 3)
    drain()
    assert (admitted("a"), blocked("a")) == (0, 3)

    limit.override(max_concurrency=1_000_000, rate="1/60d, 2")
    drain()
    assert (Task.objects.completed().count(), blocked("a")) == (2, 1)

    limit.override(max_concurrency=None, rate=None)
    drain()
    assert (Task.objects.completed().count(), blocked("a")) == (3, 0)


def test_an_idle_limit_with_an_override_is_not_deleted():
    limited.two_per_user.send_many([{"user": "a"}, {"user": "b"}])
    Task.objects.cancel()
    Limit.objects.filter(pk=TWO + "a").override(max_concurrency=5, rate=None)
    Limit.objects.update(released_at=timezone.now() - timedelta(days=60))

    run_pass(Options())

    assert Limit.objects.get().pk == TWO + "a"


def test_an_override_with_an_invalid_value_is_refused():
    with pytest.raises(ValueError, match="max_concurrency is -1; allowed: a whole number from 0 to 1000000"):
        Limit.objects.all().override(max_concurrency=-1, rate=None)


def test_a_replaced_unique_task_moves_to_its_new_limit_key():
    limited.latest.send("one", "a")
    limited.latest.send_many([{"name": "two", "user": "a"}, {"name": "three", "user": "b"}])
    waits = {"tests.jobs.limited.latest:a": 1, "tests.jobs.limited.latest:b": 0}
    assert {key: Task.objects.blocked().filter(limit_key=key).count() for key in waits} == waits

    limited.latest.send("one", "b")

    one = Task.objects.get(kwargs={}, args=["one", "b"])
    assert (one.limit_key, one.blocked) == ("tests.jobs.limited.latest:b", True)
    assert Task.objects.blocked().get() == one  # another task has its old slot


@pytest.mark.parametrize("is_later", [False, True])
def test_a_unique_task_replaced_by_a_call_without_a_limit_key_is_unlimited(is_later):
    limited.one_per_user.send("a")
    job = limited.one_per_user.with_options(unique=Unique(by=("task",), on_conflict="replace"))
    (job.with_options(run_after=timedelta(hours=1)) if is_later else job).send("a")

    job.send("")

    row = Task.objects.get(args=[""])
    assert (row.limit_key, row.blocked, row.deferred) == (None, False, False)
    assert Task.objects.released().count() == 1
    assert len(claim()) == 2

    job.send("a")
    job.with_options(run_after=timedelta(hours=1)).send("")
    row = Task.objects.scheduled().get()
    assert (row.limit_key, row.blocked, row.deferred) == (None, False, True)


def test_a_rate_limit_admits_a_burst_and_then_single_tasks():
    limited.rate_limited.send_many([{"user": "a"}] * 6)
    assert len(claim()) == 4
    limit = Limit.objects.get()
    assert limit.next_at is not None
    assert limit.tokens < 1

    def release_due():
        release_blocked.release_all("default", Limit.objects.due().values_list("pk", flat=True))
        return not Task.objects.blocked().exists()

    wait_until(release_due)
    assert len(claim()) == 2
    release_due()
    assert Limit.objects.get().next_at is None


def test_a_limit_key_out_of_tokens_delays_no_other_key_of_its_task():
    limited.rate_limited.send("a")
    Limit.objects.update(next_at=timezone.now() + timedelta(hours=1))

    other = limited.rate_limited.send("b")

    assert Task.objects.released().filter(pk=other.id).exists()


def test_rate_limit_tokens_do_not_accumulate_beyond_the_burst():
    limited.rate_limited.send_many([{"user": "a"}] * 12)
    Limit.objects.update(refilled_at=timezone.now() - timedelta(hours=1))

    release_blocked.release_all("default", ["tests.jobs.limited.rate_limited:a"])

    assert Task.objects.released().count() == 4


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("hours", [1, 24 * 365])
def test_a_rate_limited_key_goes_on_at_its_rate_after_the_databases_clock_was_set_back(hours):
    with travel(hours=hours):
        limited.four_an_hour.send_many([{"user": "a"}] * 12)
        assert Task.objects.released().count() == 4

    for _ in range(2):
        run_pass(Options())
        limited.four_an_hour.send("a")

    assert Task.objects.released().count() == 8
    limit = Limit.objects.get()
    assert limit.refilled_at < database_now("default")
    assert limit.next_at < database_now("default") + timedelta(minutes=16)


@pytest.mark.slow
@pytest.mark.sqlite
def test_the_reaper_deletes_limits_that_were_idle_for_a_day():
    limited.two_per_user.send_many([{"user": "a"}, {"user": "b"}])
    limited.rate_limited.send("c")
    complete([one for one in claim() if one.limit_key != TWO + "b"])
    long_ago = timezone.now() - timedelta(days=2)
    Limit.objects.update(released_at=long_ago)
    Limit.objects.filter(rate__isnull=False).update(rate="1/60d", tokens=0.0)

    run_pass(Options())

    assert sorted(Limit.objects.values_list("pk", flat=True)) == ["tests.jobs.limited.rate_limited:c", TWO + "b"]


def test_limits_in_use_do_not_keep_the_reaper_from_deleting_idle_ones(monkeypatch):
    monkeypatch.setattr(models.limit, "FORGET_BATCH", 2)
    long_ago = timezone.now() - timedelta(days=30)
    spent = {"rate": "1/60d", "tokens": 0.0, "refilled_at": long_ago, "released_at": long_ago}
    Limit.objects.bulk_create(Limit(key=f"{prefix}-{n}", **spent) for n in range(5) for prefix in ("first", "last"))
    recent = timezone.now() - timedelta(days=2)
    Limit.objects.bulk_create(Limit(key=f"idle-{n}", max_concurrency=1, released_at=recent) for n in range(5))

    run_pass(Options())

    assert Limit.objects.count() == 10
    assert not Limit.objects.filter(rate=None).exists()


def test_a_send_to_a_full_limit_key_takes_no_lock():
    limited.two_per_user.send_many([{"user": "a"}] * 5)

    with CaptureQueriesContext(connection) as captured:
        limited.two_per_user.send("a")

    assert len(captured) == 2, [query["sql"] for query in captured]  # the insert, and the count of free slots


def test_a_send_without_a_limit_is_one_statement():
    tasks.noop.send()
    with CaptureQueriesContext(connection) as captured:
        tasks.noop.send()

    assert len(captured) == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_releasing_one_of_many_blocked_tasks_uses_the_index():
    limited.two_per_user.send_many([{"user": "a"}] * 3_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    Task.objects.filter(pk=claim(1)[0].task_id).update(status="COMPLETED", completed_at=timezone.now())

    with CaptureQueriesContext(connection) as captured:
        assert release_blocked.release("default", [TWO + "a"]).routes.total() == 1

    if connection.vendor == "postgresql":
        chosen = [
            query["sql"] for query in captured if "SKIP LOCKED" in query["sql"] and "horsies_tasks" in query["sql"]
        ]
        assert len(chosen) == 2  # the lock of the limit, with the name of its first task, and that of the tasks
        for sql in chosen:
            with connection.cursor() as cursor:
                cursor.execute("EXPLAIN " + sql)
                plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "horsies_task_blocked" in plan
            assert "Sort" not in plan
    assert len(captured) <= 8, [query["sql"] for query in captured]


def test_releasing_many_limit_keys_takes_as_many_statements_as_one():
    keys = [TWO + key for key in ["one", *(f"{number:03}" for number in range(release_blocked.KEYS_PER_TRANSACTION))]]
    limited.two_per_user.send_many({"user": key.removeprefix(TWO)} for key in keys * 3)

    def statements(some):
        with CaptureQueriesContext(connection) as captured:
            assert release_blocked.release("default", some).routes.total() == 2 * len(some)
        return len(captured)

    assert statements(keys[1:]) == statements(keys[:1])
    assert Task.objects.blocked().count() == len(keys)


def test_a_limit_that_stays_locked_is_left_to_the_reaper(other_connection, caplog, monkeypatch):
    monkeypatch.setattr(release_blocked, "TRIES", 2)
    for _ in range(3):
        limited.two_per_user.send("a")
    Task.objects.released().filter(pk=claim(1)[0].task_id).update(status="COMPLETED", completed_at=timezone.now())

    with transaction.atomic():
        Limit.objects.select_for_update().get()
        assert other_connection(lambda: release_blocked.release_all("default", [TWO + "a"])) == 0

    assert f"limit stays locked key={TWO + 'a'!r}" in caplog.text
    assert release_blocked.sweep("default") == 1


@pytest.fixture
def other_connection():
    """Return a function that runs a call in a thread, on a separate connection."""
    from concurrent.futures import ThreadPoolExecutor

    if connection.vendor == "sqlite":
        pytest.skip("SQLite allows only one writing transaction")
    pool = ThreadPoolExecutor(1)
    yield lambda call: pool.submit(call).result(30)
    pool.submit(connections.close_all).result(30)
    pool.shutdown()
