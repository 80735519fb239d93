"""A transaction that a body leaves open does not affect other bodies."""

import asyncio
import logging
import threading

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TestCase

from horsies_django import TaskStatus, task
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker import open_transactions

pytestmark = pytest.mark.once

#: A body that leaves a transaction open, and a body that runs in the same thread.
PAIRS = {
    "threads": (open_transactions.leave, tasks.write),
    "coroutines": (open_transactions.aleave, tasks.awrite),
    "shared threads": (open_transactions.aleave_in_shared_thread, open_transactions.awrite_in_shared_thread),
}


#: What bodies have left behind on the event loop of this process.
left_behind = []

#: The most threads that Python's default executor starts.
SHARED_THREADS = 32


async def write_later(key, body):
    await asyncio.wait([body])
    await Entry.objects.acreate(key=key)
    await sync_to_async(open_transactions.begin)()


@task
async def leave_a_coroutine(key):
    left_behind.append(asyncio.create_task(write_later(key, asyncio.current_task())))
    await Entry.objects.aexists()


@task
async def leave_a_callback(key):
    loop, body = asyncio.get_running_loop(), asyncio.current_task()
    done = loop.create_future()
    left_behind.append(done)

    def start():
        writing = loop.create_task(write_later(key, body))
        writing.add_done_callback(lambda _: done.set_result(None))

    loop.call_later(0, start)


@task
async def leave_a_sleep():
    left_behind.append(asyncio.create_task(asyncio.sleep(3_600)))
    await asyncio.sleep(0)


@task
async def finish_what_is_left(threads_before):
    await asyncio.gather(*left_behind)
    return threading.active_count() - threads_before


def keys():
    return set(Entry.objects.values_list("key", flat=True))


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("way", open_transactions.WAYS)
def test_a_transaction_left_open_by_a_body_loses_no_effects_of_later_bodies(drain, caplog, kind, way):
    bad, good = PAIRS[kind]
    first = bad.send(way)

    with caplog.at_level(logging.ERROR, "horsies_django.worker"):
        drain(threads=1, async_slots=1)
        handles = [good.send(str(number)) for number in range(9)]
        first_again = bad.send(way)
        handles += [good.send("last")]
        drain(threads=1, async_slots=1)

    assert {handle.status() for handle in (first, first_again, *handles)} == {TaskStatus.COMPLETED}
    assert keys() == {*map(str, range(9)), "last"}
    for handle in (first, first_again):
        line = f"task left a transaction open id={handle.id} name={bad.module_path} database=default"
        assert line in caplog.text


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("leave", [leave_a_coroutine, leave_a_callback])
def test_coroutines_that_outlive_their_bodies_share_threads_and_leave_no_transaction_open(drain, caplog, leave):
    left_behind.clear()
    leave.send_many({"key": str(number)} for number in range(60))
    last = finish_what_is_left.with_options(priority=-1).send(threading.active_count())

    drain(async_slots=1)

    assert last.get(0).ok <= SHARED_THREADS + 5
    assert keys() == set(map(str, range(60)))
    assert caplog.text.count("task left a transaction open") == 60


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_ends_cancels_and_counts_the_coroutines_that_bodies_left_behind(drain, caplog):
    left_behind.clear()
    leave_a_sleep.send_many({} for _ in range(3))

    drain()

    assert [left.cancelled() for left in left_behind] == [True] * 3
    assert "asyncio tasks that bodies left behind are cancelled count=3" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_connection_without_an_open_transaction_is_reused(drain, caplog):
    handles = [open_transactions.backend_of.send() for _ in range(5)]

    drain(threads=1)

    assert len({handle.get(0).ok for handle in handles}) == 1
    assert "left a transaction open" not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_an_atomic_task_that_leaves_an_atomic_block_open_fails_without_effects(drain):
    bad = open_transactions.leave_inside.send("enter_atomic")
    drain(threads=1)
    good = tasks.write.send("good")
    drain(threads=1)

    assert "left a transaction.atomic() block open" in bad.get(0).err.message
    assert good.status() == TaskStatus.COMPLETED
    assert keys() == {"good"}


class InsideATestCase(TestCase):
    """Bodies use the connection and the transaction of the test."""

    def test_a_drain_keeps_its_callers_transaction_and_rolls_back_open_blocks_of_bodies(self):
        Entry.objects.create(key="test's")
        depth, own = len(connection.atomic_blocks), connections["default"]
        bad, atomic = open_transactions.leave.send("enter_atomic"), open_transactions.leave_inside.send("enter_atomic")
        good = tasks.write.send("good")

        call_command("horsies_worker", drain=True, verbosity=0)

        assert connections["default"] is own
        assert len(connection.atomic_blocks) == depth
        assert not transaction.get_rollback()
        assert (bad.status(), atomic.status(), good.status()) == ("COMPLETED", "FAILED", "COMPLETED")
        assert keys() == {"test's", "good"}
