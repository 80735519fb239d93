"""Repeated sends of one call, concurrent or after a failure of unknown outcome, make one task."""

import datetime
import threading
import uuid

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.utils import timezone

from horsies_django import ContractCode, TaskHandle, TaskStatus
from horsies_django.core.compat import InvalidTask, task_enqueued
from horsies_django.exceptions import HorsiesError, PayloadMismatch
from horsies_django.models import Task
from tests.enqueue import jobs

LATER = timezone.now() + datetime.timedelta(days=1)
KEY = uuid.UUID("018f0000-0000-7000-8000-000000000001")

SENDS = {
    "send": lambda job, *args: job.send(*args).id,
    "asend": lambda job, *args: async_to_sync(job.asend)(*args).id,
    "schedule": lambda job, *args: job.schedule(60, *args).id,
    "enqueue": lambda job, *args: uuid.UUID(job.enqueue(*args).id),
    "aenqueue": lambda job, *args: uuid.UUID(async_to_sync(job.aenqueue)(*args).id),
}


@pytest.fixture(params=SENDS)
def send(request, transactional_db):
    """Each way to send one call; it returns the task's id."""
    return SENDS[request.param]


def run_concurrently(count, act):
    """Run ``act`` in ``count`` threads at once; return the result or the exception of each."""
    barrier, found = threading.Barrier(count), []

    def run(number):
        try:
            barrier.wait(30)
            found.append(act(number))
        except Exception as error:
            found.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return found


# The same call.


def test_sends_repeated_with_one_task_id_make_one_row(send):
    job = jobs.triple.with_options(task_id=KEY)

    keys = [send(job, 1), send(job, 1), send(job, 1)]

    assert keys == [KEY] * 3
    assert [row.pk for row in Task.objects.all()] == [KEY]


@pytest.mark.django_db
@pytest.mark.parametrize("given", [KEY, str(KEY), KEY.hex], ids=["uuid", "text", "hex"])
def test_a_handle_knows_whether_its_send_was_a_replay(given):
    job = jobs.triple.with_options(task_id=given)

    first, second, plain = job.send(1), job.send(1), jobs.triple.send(1)

    assert (first.id, first.replayed, second.id, second.replayed) == (KEY, False, KEY, True)
    assert (plain.replayed, TaskHandle(KEY).replayed) == (False, False)
    assert first == second


def test_a_replayed_send_does_not_run_an_ended_task_again(drain):
    job = jobs.triple.with_options(task_id=KEY)
    job.send(1)
    drain()

    again = job.send(1)
    drain()

    assert (again.replayed, again.status(), again.info().attempt) == (True, TaskStatus.COMPLETED, 1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [
        0.1, -0.0, 5e-324, 1e15, 1e16, 1e22, 1e300, 1.7976931348623157e308, 2**64, 10**40, 1, True, None, "", "é\u2028",
        {"b": 1, "a": [1, {"x": None}]}, [], {}, [[1.0, 2]], {"1": 1, "$type": "date"},
    ],
    ids=ascii,
)  # fmt: skip
def test_a_repeated_send_is_a_replay_however_the_database_stores_its_value(value):
    job = jobs.anything.with_options(task_id=KEY)
    job.send(value, named=value)

    again = job.send(value, named=value)

    assert again.replayed


@pytest.mark.django_db
def test_keyword_order_timeout_and_metadata_do_not_prevent_a_replay():
    job = jobs.anything.with_options(task_id=KEY, good_until=LATER, run_after=LATER, timeout=5, metadata={"try": 1})
    job.send(a=1, b=2)

    again = job.with_options(timeout=9, metadata={"try": 2}).send(b=2, a=1)

    assert again.replayed


@pytest.mark.django_db
def test_a_repeated_send_with_another_delay_is_a_replay():
    job = jobs.triple.with_options(task_id=KEY)
    first = job.schedule(60, 1)

    again = job.schedule(90, 1)

    assert (again.replayed, again.info().enqueued_at) == (True, first.info().enqueued_at)


def test_a_replay_does_not_send_the_task_enqueued_signal(transactional_db):
    enqueued_ids = []

    def receiver(task_result, **_):
        enqueued_ids.append(task_result.id)

    task_enqueued.connect(receiver)
    job = jobs.triple.with_options(task_id=KEY)

    job.enqueue(1)
    job.enqueue(1)
    job.send(1)
    task_enqueued.disconnect(receiver)

    assert enqueued_ids == [str(KEY)]


@pytest.mark.django_db(transaction=True)
def test_a_send_repeated_inside_and_after_a_transaction_makes_one_row():
    job = jobs.triple.with_options(task_id=KEY)
    with transaction.atomic():
        first, second = job.send(1), job.send(1)
        other = jobs.triple.send(2)

    third = job.send(1)

    assert [first.replayed, second.replayed, third.replayed] == [False, True, True]
    assert {row.pk for row in Task.objects.all()} == {KEY, other.id}


@pytest.mark.django_db(transaction=True)
def test_a_rollback_frees_the_task_id():
    job = jobs.triple.with_options(task_id=KEY)
    with transaction.atomic():
        job.send(1)
        transaction.set_rollback(True)

    again = job.send(2)

    assert (again.replayed, Task.objects.get().args) == (False, [2])


def test_twenty_concurrent_sends_with_one_task_id_make_one_row(transactional_db):
    job = jobs.triple.with_options(task_id=KEY)

    found = run_concurrently(20, lambda _: job.send(1))

    assert [handle.id for handle in found] == [KEY] * 20
    assert [handle.replayed for handle in found].count(False) == 1
    assert Task.objects.count() == 1


# A different call.


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("again", "differs"),
    [
        (lambda job: job.send(2), "args"),
        (lambda job: job.send(1.5), "args"),
        (lambda job: job.send(True), "args"),
        (lambda job: job.send("1"), "args"),
        (lambda job: job.send([1]), "args"),
        (lambda job: job.send(a=1), "args, kwargs"),
        (lambda job: job.send(1, c=4), "kwargs"),
        (lambda job: jobs.identity.with_options(task_id=KEY).send(1), "task_name"),
        (lambda job: job.with_options(queue_name="other").send(1), "queue_name"),
        (lambda job: job.with_options(priority=1).send(1), "priority"),
        (lambda job: job.with_options(good_until=LATER).send(1), "good_until"),
        (lambda job: job.with_options(run_after=LATER).send(1), "run_after"),
        (lambda job: job.with_options(priority=1, run_after=LATER).enqueue(2), "args, priority, run_after"),
    ],
)
def test_a_different_call_with_the_same_task_id_raises_payload_mismatch(again, differs):
    job = jobs.triple.with_options(task_id=KEY)
    job.send(1)

    with transaction.atomic(), pytest.raises(PayloadMismatch) as caught:
        again(job)

    assert str(caught.value).endswith(f"it differs in {differs}.")
    assert str(KEY) in str(caught.value)
    assert (caught.value.task_id, ", ".join(caught.value.differing)) == (KEY, differs)
    assert Task.objects.get().args == [1]


def test_payload_mismatch_is_a_horsies_error_with_a_code():
    kind = PayloadMismatch

    assert issubclass(kind, HorsiesError)
    assert kind.code == ContractCode.PAYLOAD_MISMATCH


@pytest.mark.django_db(transaction=True)
def test_a_payload_mismatch_leaves_the_callers_transaction_usable():
    job = jobs.triple.with_options(task_id=KEY)
    with transaction.atomic():
        job.send(1)
        with pytest.raises(PayloadMismatch):
            job.send(2)
        kept = jobs.triple.send(3)

    assert {row.pk for row in Task.objects.all()} == {KEY, kept.id}


def test_one_of_two_different_concurrent_calls_wins_and_the_other_is_refused(transactional_db):
    job = jobs.triple.with_options(task_id=KEY)

    found = run_concurrently(10, lambda number: job.send(number % 2))

    (args,) = Task.objects.values_list("args", flat=True)
    assert [type(one) for one in found].count(PayloadMismatch) == 5
    assert [handle.replayed for handle in found if isinstance(handle, TaskHandle)].count(False) == 1
    assert args in ([0], [1])


# task_id as an option.


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["", "not an id", 5, b"x" * 16, str(KEY) + "0"], ids=ascii)
def test_a_malformed_task_id_raises_invalid_task(value):
    with pytest.raises(InvalidTask, match="task_id is"):
        jobs.triple.with_options(task_id=value).send(1)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_a_task_id_of_none_gives_the_send_a_new_id():
    job = jobs.triple.with_options(task_id=KEY)
    job.send(1)

    other = job.with_options(task_id=None).send(1)

    assert (other.replayed, other.id == KEY, Task.objects.count()) == (False, False, 2)


@pytest.mark.django_db
def test_send_many_refuses_a_task_id():
    job = jobs.triple.with_options(task_id=KEY)

    with pytest.raises(ValueError, match="task_id is for one"):
        job.send_many([{"a": 1}])

    assert not Task.objects.exists()


def test_the_task_decorator_refuses_a_task_id():
    with pytest.raises(TypeError, match="task_id"):
        jobs.task(task_id=KEY)(jobs.triple.func)


@pytest.mark.django_db
def test_a_task_id_takes_precedence_over_a_unique_key():
    job = jobs.triple.with_options(task_id=KEY, unique_key="k")
    first = job.send(1)

    same, rival = job.send(1), jobs.triple.with_options(unique_key="k").send(2)
    by_key = job.with_options(task_id=uuid.uuid4()).send(3)

    assert [first.replayed, same.replayed, rival.replayed, by_key.replayed] == [False, True, True, True]
    assert {first.id, same.id, rival.id, by_key.id} == {KEY}
    with pytest.raises(PayloadMismatch):
        job.send(2)


# Many calls at once.


@pytest.mark.slow
def test_fifty_concurrent_sends_with_one_unique_key_make_one_task(transactional_db):
    job = jobs.triple.with_options(unique_key="nightly")

    found = run_concurrently(50, lambda number: job.send(number))

    assert {handle.id for handle in found} == {Task.objects.get().pk}
    assert [handle.replayed for handle in found].count(False) == 1


# Large arguments.

LIMITED = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": [],
        "OPTIONS": {"max_payload_bytes": 2_000},
    }
}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "call",
    [
        lambda: jobs.identity.send("x" * 2_000),
        lambda: jobs.identity.send("é" * 1_000),
        lambda: jobs.triple.send("x" * 1_000, c="y" * 1_000),
        lambda: jobs.anything.send(**{"x" * 2_000: 1}),
        lambda: jobs.identity.enqueue(list(range(1_000))),
        lambda: jobs.identity.send_many([{"value": 1}, {"value": "x" * 2_000}]),
    ],
)
def test_too_large_arguments_are_refused_with_their_size_and_the_limit(settings, call):
    settings.TASKS = LIMITED

    with pytest.raises(ValueError, match=r"the payload of tests\.enqueue\.jobs\.\w+ is too large: \d,\d+ bytes.*2,000"):
        call()

    assert not Task.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db
def test_arguments_within_the_limit_are_sent_and_none_disables_the_limit(settings):
    settings.TASKS = LIMITED
    jobs.identity.send("x" * 1_900)
    jobs.identity.send("é" * 900)
    settings.TASKS = {"default": LIMITED["default"] | {"OPTIONS": {"max_payload_bytes": None}}}
    jobs.identity.send("x" * 20_000_000)

    count = Task.objects.count()

    assert count == 3
