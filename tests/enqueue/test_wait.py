"""Waiting for results: many waiters make as few queries as two, and each of them returns."""

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time
import uuid
from itertools import pairwise

import pytest
from asgiref.sync import async_to_sync
from django.db import Error, connection, transaction

from horsies_django import TaskHandle, TaskResult
from horsies_django.enqueue import wait
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.database import querying_threads
from tests.enqueue import jobs


class Interruption(BaseException):
    """Like KeyboardInterrupt, but raised in any thread."""


@pytest.fixture
def queries(transactional_db):
    """The thread names of the queries for tasks, one for each query, on any connection."""
    with querying_threads("horsies_tasks") as names:
        yield names


class Waiter(threading.Thread):
    """A thread that calls ``get()``; its ``code`` says how that ended."""

    def __init__(self, handle, timeout=None):
        super().__init__(daemon=True)
        self.handle, self.timeout, self.code = TaskHandle(handle.id), timeout, None
        self.start()

    def run(self):
        try:
            result = self.handle.get(self.timeout)
            self.code = result.err.error_code if result.is_err() else "OK"
        except Interruption:
            self.code = "INTERRUPTED"
        finally:
            connection.close()

    def interrupt(self):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Interruption))


def codes(waiters, limit=300):
    for waiter in waiters:
        waiter.join(limit)
    return [waiter.code for waiter in waiters]


# Many waiters.


def max_queries(seconds):
    """Allow a poll each 20 ms, of two queries for a thousand ids, and some queries of the first waiters."""
    return 2 * (seconds / 0.02) + 20


@pytest.mark.slow
def test_a_thousand_waiting_threads_query_as_often_as_two(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(1_000))
    start = time.monotonic()
    waiters = [Waiter(handle, 3) for handle in handles]

    found = codes(waiters)

    assert set(found) == {"WAIT_TIMEOUT"}
    assert len(queries) < max_queries(time.monotonic() - start)


@pytest.mark.slow
def test_a_thousand_waiting_threads_all_return_when_their_tasks_end(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(1_000))
    start = time.monotonic()
    waiters = [Waiter(handle, 300) for handle in handles]
    wait_until(lambda: len(queries) > 4, 60, "polls for many tasks")

    Task.objects.all().cancel()
    found = codes(waiters)

    assert set(found) == {"TASK_CANCELLED"}
    assert len(queries) < max_queries(time.monotonic() - start)


@pytest.mark.slow
def test_a_thousand_waiting_coroutines_query_once_each_and_then_together(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(1_000))
    start = time.monotonic()

    async def wait():
        results = await asyncio.gather(*(TaskHandle(handle.id).aget(3) for handle in handles))
        return results, asyncio.all_tasks() - {asyncio.current_task()}

    results, left_behind = async_to_sync(wait)()

    assert {result.err.error_code for result in results} == {"WAIT_TIMEOUT"}
    assert len(queries) < 1_000 + max_queries(time.monotonic() - start)
    assert not left_behind


def test_all_waiters_of_one_task_return_when_it_ends(queries):
    handle = jobs.triple.send(1)
    waiters = [Waiter(handle, 30) for _ in range(20)]
    wait_until(lambda: len(queries) > 3)

    handle.cancel()

    assert codes(waiters) == ["TASK_CANCELLED"] * 20


@pytest.mark.once
def test_a_long_wait_on_sqlite_keeps_polling_often(queries):
    if connection.vendor != "sqlite":
        return
    handle = jobs.triple.send(1)
    waiter = Waiter(handle, 60)

    times = []

    def has_polled_often():
        times.extend([time.monotonic()] * (len(queries) - len(times)))
        return len(times) > 20

    wait_until(has_polled_often)
    # Polls did not become as rare as each half second; a slow machine delays some of them.
    assert min(later - earlier for earlier, later in pairwise(times[-10:])) < 0.4

    handle.cancel()
    assert codes([waiter]) == ["TASK_CANCELLED"]


# The leader may leave.


def group_of_threads():
    return wait._group_of_process("default", wait.of_tasks, os.getpid())


def leader_of(waiters, queries):
    """Return the waiter that polls for the others."""
    names = {waiter.name: waiter for waiter in waiters}
    seen = len(queries)
    wait_until(lambda: any(name in names for name in queries[seen + 2 :]), what="a leader polls")
    return next(names[name] for name in reversed(queries) if name in names)


def test_another_waiter_leads_after_the_leaders_timeout(queries):
    first, second = jobs.triple.send(1), jobs.triple.send(2)
    hasty = Waiter(first, 0.3)
    wait_until(lambda: hasty.name in queries, what="it leads")
    patient = Waiter(second, 30)

    found = codes([hasty])
    second.cancel()

    assert found + codes([patient]) == ["WAIT_TIMEOUT", "TASK_CANCELLED"]


def test_an_exception_in_the_leader_does_not_strand_its_followers(queries):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}, {"a": 3}])
    waiters = [Waiter(handle, 30) for handle in handles]
    leader = leader_of(waiters, queries)

    leader.interrupt()
    leader.join(60)
    Task.objects.all().cancel()

    others = [waiter for waiter in waiters if waiter is not leader]
    assert [leader.code, *codes(others)] == ["INTERRUPTED", "TASK_CANCELLED", "TASK_CANCELLED"]


def test_a_follower_can_be_interrupted(queries):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}])
    waiters = [Waiter(handle, 30) for handle in handles]
    wait_until(lambda: len(group_of_threads().waiters) == 2, what="both wait")
    leader = leader_of(waiters, queries)
    follower = next(waiter for waiter in waiters if waiter is not leader)

    follower.interrupt()
    follower.join(60)
    Task.objects.all().cancel()

    assert (follower.code, *codes([leader])) == ("INTERRUPTED", "TASK_CANCELLED")


def test_an_exception_at_the_start_of_a_poll_leaves_no_connection_open(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("a poll needs no thread of its own")
    handle = jobs.triple.send(1)

    class Interrupted(Waiter):
        def run(self):
            sys.settrace(self.interrupt_start)
            super().run()

        def interrupt_start(self, frame, event, arg):
            caller = frame.f_back
            starts = (frame.f_code, caller.f_code) == (threading.Event.wait.__code__, threading.Thread.start.__code__)
            if starts and caller.f_locals["self"].name == self.name:  # the thread of its poll
                sys.settrace(None)
                raise Interruption

    waiter = Interrupted(handle, 30)
    found = codes([waiter])
    wait_until(lambda: waiter.name not in {thread.name for thread in threading.enumerate()}, what="the poll has ended")

    assert found == ["INTERRUPTED"]
    gc.collect()  # a connection that is still open warns as it is collected, which fails the test


def test_another_waiter_replaces_a_leader_that_hangs():
    group = wait._WaitGroup()
    hung, other = (wait._Waiter(uuid.uuid4(), time.monotonic() + 60, threading.Event()) for _ in range(2))
    group.join(hung)
    group.join(other)
    group.next_step(hung)
    before = group.next_step(other)

    group.polled_at -= 60
    after = group.next_step(other)

    assert not before.waiters
    assert set(after.waiters) == {hung, other}


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_cancelled_coroutine_strands_no_waiter_and_leaves_no_task_behind(transactional_db, role):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}, {"a": 3}])

    async def wait():
        waits = [asyncio.ensure_future(TaskHandle(handle.id).aget(30)) for handle in handles]
        await TaskHandle(handles[0].id).aget(0.2)
        out = waits.pop(0 if role == "leader" else 1)
        out.cancel()
        with pytest.raises(asyncio.CancelledError):
            await out
        for handle in handles:
            await handle.acancel()
        results = await asyncio.gather(*waits)
        return results, asyncio.all_tasks() - {asyncio.current_task()}

    results, left_behind = async_to_sync(wait)()

    assert [result.err.error_code for result in results] == ["TASK_CANCELLED"] * 2
    assert not left_behind


def test_a_wait_group_is_empty_once_all_waiters_have_left(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(5))

    found = codes([Waiter(handle, 0.2) for handle in handles])

    group = group_of_threads()
    assert found == ["WAIT_TIMEOUT"] * 5
    assert (group.leader, group.waiters) == (None, {})
    assert not any(group.waiters for groups in wait._groups_of_loops.values() for group in groups.values())


# Transactions.


def test_a_waiter_in_a_transaction_polls_for_itself(queries):
    other = Waiter(jobs.triple.send(1), 30)
    leader_of([other], queries)

    with transaction.atomic():
        handle = jobs.triple.send(2)
        inside = handle.get(0.3)
        handle.cancel()
        ended = handle.get(10)

    TaskHandle(other.handle.id).cancel()
    assert (inside.err.error_code, ended.err.error_code) == ("WAIT_TIMEOUT", "TASK_CANCELLED")
    assert codes([other]) == ["TASK_CANCELLED"]


def test_aget_sees_the_rows_of_the_callers_transaction(transactional_db):
    with transaction.atomic():
        handle = jobs.triple.send(2)
        result = async_to_sync(handle.aget)(0.3)

    assert result.err.error_code == "WAIT_TIMEOUT"


# Before, during and after the end of a task; outages.


def test_get_times_out_until_the_task_ends_and_then_returns_its_result(transactional_db, drain, get):
    handle = jobs.triple.send(1)
    before = get(handle, 0)
    Task.objects.update(status="RUNNING")
    during = get(handle, 0.05)
    Task.objects.update(status="PENDING")

    drain()

    assert [before.err.error_code, during.err.error_code] == ["WAIT_TIMEOUT"] * 2
    assert get(handle, 0) == TaskResult(ok=[1, 2, 3])


def test_get_returns_task_not_found_when_the_row_is_deleted_during_the_wait(queries):
    handle = jobs.triple.send(1)
    waiter = Waiter(handle, 30)
    leader_of([waiter], queries)

    Task.objects.all().delete()

    assert codes([waiter]) == ["TASK_NOT_FOUND"]


@pytest.mark.parametrize("timeout", [0, 5, None])
def test_get_returns_broker_error_during_an_outage_and_the_result_after_it(get, drain, monkeypatch, timeout):
    handle = jobs.triple.send(1)
    drain()
    connection.close()

    with monkeypatch.context() as outage:
        outage.setitem(connection.settings_dict, "NAME", "/no/such/database")
        result = get(handle, timeout)

    assert result.err.error_code == "BROKER_ERROR"
    assert "can't be asked" in result.err.message
    assert get(handle, timeout) == TaskResult(ok=[1, 2, 3])


def rename(table, name):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_all_waiters_get_broker_error_during_an_outage(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(20))
    waiters = [Waiter(handle, 60) for handle in handles]
    leader_of(waiters, queries)

    try:
        rename("horsies_tasks", "gone")
        found = codes(waiters)
    finally:
        rename("gone", "horsies_tasks")

    assert found == ["BROKER_ERROR"] * 20
    assert handles[0].get(0).err.error_code == "WAIT_TIMEOUT"


def test_get_replaces_a_connection_that_died_unnoticed(drain, get):
    if connection.vendor != "postgresql":
        pytest.skip("there is no connection that could die")
    handle = jobs.triple.send(1)
    drain()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    other.close()

    result = get(handle, 0)

    assert result == TaskResult(ok=[1, 2, 3])


@pytest.mark.django_db(transaction=True)
def test_get_in_a_broken_transaction_returns_an_error_and_leaves_it_open():
    handle = jobs.triple.send(1)

    with transaction.atomic():
        with pytest.raises(Error), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
        result = handle.get(0)
        transaction.set_rollback(True)

    assert result.err.error_code == ("BROKER_ERROR" if connection.vendor == "postgresql" else "WAIT_TIMEOUT")
    assert handle.get(0).err.error_code == "WAIT_TIMEOUT"
