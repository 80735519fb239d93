"""A send that is repeated, after a failure that leaves its outcome open or by two at once, makes one task."""

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
    """Every way to send one call; gives its id."""
    return SENDS[request.param]


def at_once(count, act):
    """Do it in so many threads at the same time, and return what each gave or raised."""
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


def test_a_send_repeated_with_its_id_is_one_row(send):
    job = jobs.triple.with_options(task_id=KEY)

    keys = [send(job, 1), send(job, 1), send(job, 1)]

    assert keys == [KEY] * 3
    assert [row.pk for row in Task.objects.all()] == [KEY]


@pytest.mark.django_db
@pytest.mark.parametrize("given", [KEY, str(KEY), KEY.hex], ids=["uuid", "text", "hex"])
def test_the_handle_knows_whether_it_is_a_replay(given):
    job = jobs.triple.with_options(task_id=given)

    first, second, plain = job.send(1), job.send(1), jobs.triple.send(1)

    assert (first.id, first.replayed, second.id, second.replayed) == (KEY, False, KEY, True)
    assert (plain.replayed, TaskHandle(KEY).replayed) == (False, False)
    assert first == second


def test_a_task_that_has_ended_is_not_run_again(drain):
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
def test_any_value_is_the_same_call_again_whatever_the_database_makes_of_it(value):
    job = jobs.anything.with_options(task_id=KEY)
    job.send(value, named=value)

    again = job.send(value, named=value)

    assert again.replayed


@pytest.mark.django_db
def test_the_order_of_names_and_the_options_that_are_no_payload_do_not_count():
    job = jobs.anything.with_options(task_id=KEY, good_until=LATER, run_after=LATER, timeout=5, metadata={"try": 1})
    job.send(a=1, b=2)

    again = job.with_options(timeout=9, metadata={"try": 2}).send(b=2, a=1)

    assert again.replayed


@pytest.mark.django_db
def test_a_delay_counts_from_each_call_and_so_is_never_another_payload():
    job = jobs.triple.with_options(task_id=KEY)
    first = job.schedule(60, 1)

    again = job.schedule(90, 1)

    assert (again.replayed, again.info().enqueued_at) == (True, first.info().enqueued_at)


def test_a_replay_is_not_announced(transactional_db):
    heard = []

    def receiver(task_result, **_):
        heard.append(task_result.id)

    task_enqueued.connect(receiver)
    job = jobs.triple.with_options(task_id=KEY)

    job.enqueue(1)
    job.enqueue(1)
    job.send(1)
    task_enqueued.disconnect(receiver)

    assert heard == [str(KEY)]


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_that_goes_on_and_commits():
    job = jobs.triple.with_options(task_id=KEY)
    with transaction.atomic():
        first, second = job.send(1), job.send(1)
        other = jobs.triple.send(2)

    third = job.send(1)

    assert [first.replayed, second.replayed, third.replayed] == [False, True, True]
    assert {row.pk for row in Task.objects.all()} == {KEY, other.id}


@pytest.mark.django_db(transaction=True)
def test_after_a_rollback_the_id_is_free_again():
    job = jobs.triple.with_options(task_id=KEY)
    with transaction.atomic():
        job.send(1)
        transaction.set_rollback(True)

    again = job.send(2)

    assert (again.replayed, Task.objects.get().args) == (False, [2])


def test_twenty_at_once_are_one_row_and_one_of_them_made_it(transactional_db):
    job = jobs.triple.with_options(task_id=KEY)

    found = at_once(20, lambda _: job.send(1))

    assert [handle.id for handle in found] == [KEY] * 20
    assert [handle.replayed for handle in found].count(False) == 1
    assert Task.objects.count() == 1


# Another call.


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
def test_another_call_with_the_same_id_is_refused_with_what_differs(again, differs):
    job = jobs.triple.with_options(task_id=KEY)
    job.send(1)

    with transaction.atomic(), pytest.raises(PayloadMismatch) as caught:
        again(job)

    assert str(caught.value).endswith(f"it differs in {differs}.")
    assert str(KEY) in str(caught.value)
    assert (caught.value.task_id, ", ".join(caught.value.differing)) == (KEY, differs)
    assert Task.objects.get().args == [1]


def test_the_error_is_ours_and_has_its_code():
    kind = PayloadMismatch

    assert issubclass(kind, HorsiesError)
    assert kind.code == ContractCode.PAYLOAD_MISMATCH


@pytest.mark.django_db(transaction=True)
def test_the_callers_transaction_stays_usable():
    job = jobs.triple.with_options(task_id=KEY)
    with transaction.atomic():
        job.send(1)
        with pytest.raises(PayloadMismatch):
            job.send(2)
        kept = jobs.triple.send(3)

    assert {row.pk for row in Task.objects.all()} == {KEY, kept.id}


def test_of_two_calls_at_once_one_wins_and_the_other_is_refused(transactional_db):
    job = jobs.triple.with_options(task_id=KEY)

    found = at_once(10, lambda number: job.send(number % 2))

    (args,) = Task.objects.values_list("args", flat=True)
    assert [type(one) for one in found].count(PayloadMismatch) == 5
    assert [handle.replayed for handle in found if isinstance(handle, TaskHandle)].count(False) == 1
    assert args in ([0], [1])


# task_id as an option.


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["", "not an id", 5, b"x" * 16, str(KEY) + "0"], ids=ascii)
def test_an_id_that_is_none_is_an_invalid_task_that_names_it(value):
    with pytest.raises(InvalidTask, match="task_id is"):
        jobs.triple.with_options(task_id=value).send(1)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_none_gives_each_call_an_id_of_its_own_again():
    job = jobs.triple.with_options(task_id=KEY)
    job.send(1)

    other = job.with_options(task_id=None).send(1)

    assert (other.replayed, other.id == KEY, Task.objects.count()) == (False, False, 2)


@pytest.mark.django_db
def test_many_cannot_have_one_id():
    job = jobs.triple.with_options(task_id=KEY)

    with pytest.raises(ValueError, match="task_id is for one"):
        job.send_many([{"a": 1}])

    assert not Task.objects.exists()


def test_the_decorator_does_not_take_an_id():
    with pytest.raises(TypeError, match="task_id"):
        jobs.task(task_id=KEY)(jobs.triple.func)


@pytest.mark.django_db
def test_id_and_unique_key_together_the_id_counts_first():
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
def test_of_fifty_at_once_with_one_unique_key_one_makes_the_task_and_all_get_its_id(transactional_db):
    job = jobs.triple.with_options(unique_key="nightly")

    found = at_once(50, lambda number: job.send(number))

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
def test_arguments_that_are_too_large_are_refused_with_size_and_limit(settings, call):
    settings.TASKS = LIMITED

    with pytest.raises(ValueError, match=r"the payload of tests\.enqueue\.jobs\.\w+ is too large: \d,\d+ bytes.*2,000"):
        call()

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_what_fits_is_sent_and_none_is_no_limit(settings):
    settings.TASKS = LIMITED
    jobs.identity.send("x" * 1_900)
    jobs.identity.send("é" * 900)
    settings.TASKS = {"default": LIMITED["default"] | {"OPTIONS": {"max_payload_bytes": None}}}
    jobs.identity.send("x" * 20_000_000)

    count = Task.objects.count()

    assert count == 3
