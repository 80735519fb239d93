"""Many who wait cost what a few do, and nobody who waits is forgotten."""

import asyncio
import ctypes
import gc
import os
import sys
import threading
import time
import uuid

import pytest
from asgiref.sync import async_to_sync
from django.db import Error, connection, transaction

from horsies_django import TaskHandle, TaskResult
from horsies_django.enqueue import wait
from horsies_django.models import Task
from tests.asking import asking_for
from tests.conftest import wait_until
from tests.enqueue import jobs

GETS = {"get": TaskHandle.get, "aget": async_to_sync(TaskHandle.aget)}


class Interruption(BaseException):
    """As Ctrl-C, but in a thread."""


@pytest.fixture(params=GETS)
def get(request, transactional_db):
    """``get()`` and its twin."""
    return GETS[request.param]


@pytest.fixture
def asked(transactional_db):
    """The names of the threads that ask for tasks, one for each query, whatever their connection."""
    with asking_for("horsies_tasks") as names:
        yield names


class Waiter(threading.Thread):
    """A thread that gets a result, and ends with what it got or with what was raised in it."""

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


# Many who wait.


def most_allowed(seconds):
    """A look each 20 ms, of two queries for a thousand ids; and the first of each of a few."""
    return 2 * (seconds / 0.02) + 20


@pytest.mark.slow
def test_a_thousand_threads_that_wait_ask_as_often_as_two_would(asked):
    handles = jobs.triple.send_many({"a": number} for number in range(1_000))
    start = time.monotonic()
    waiters = [Waiter(handle, 3) for handle in handles]

    found = codes(waiters)

    assert set(found) == {"WAIT_TIMEOUT"}
    assert len(asked) < most_allowed(time.monotonic() - start)


@pytest.mark.slow
def test_a_thousand_threads_all_hear_of_the_end(asked):
    handles = jobs.triple.send_many({"a": number} for number in range(1_000))
    start = time.monotonic()
    waiters = [Waiter(handle, 300) for handle in handles]
    wait_until(lambda: len(asked) > 4, 60, "looks for many")

    Task.objects.all().cancel()
    found = codes(waiters)

    assert set(found) == {"TASK_CANCELLED"}
    assert len(asked) < most_allowed(time.monotonic() - start)


@pytest.mark.slow
def test_a_thousand_coroutines_look_once_each_and_then_all_together(asked):
    handles = jobs.triple.send_many({"a": number} for number in range(1_000))
    start = time.monotonic()

    async def wait():
        results = await asyncio.gather(*(TaskHandle(handle.id).aget(3) for handle in handles))
        return results, asyncio.all_tasks() - {asyncio.current_task()}

    results, left_behind = async_to_sync(wait)()

    assert {result.err.error_code for result in results} == {"WAIT_TIMEOUT"}
    assert len(asked) < 1_000 + most_allowed(time.monotonic() - start)
    assert not left_behind


def test_those_who_wait_for_one_task_are_told_together(asked):
    handle = jobs.triple.send(1)
    waiters = [Waiter(handle, 30) for _ in range(20)]
    wait_until(lambda: len(asked) > 3)

    handle.cancel()

    assert codes(waiters) == ["TASK_CANCELLED"] * 20


@pytest.mark.once
def test_on_sqlite_which_tells_of_no_ends_a_long_wait_goes_on_looking_often(asked):
    if connection.vendor != "sqlite":
        return
    handle = jobs.triple.send(1)
    waiter = Waiter(handle, 60)

    wait_until(lambda: len(asked) > 20, 5)  # each half second, that would be seven

    handle.cancel()
    assert codes([waiter]) == ["TASK_CANCELLED"]


# Whoever leads may leave.


def room_of_threads():
    return wait._group_of_process("default", wait.of_tasks, os.getpid())


def leader_of(waiters, asked):
    """The waiter that looks for the others."""
    names = {waiter.name: waiter for waiter in waiters}
    seen = len(asked)
    wait_until(lambda: any(name in names for name in asked[seen + 2 :]), what="a leader looked")
    return next(names[name] for name in reversed(asked) if name in names)


def test_when_the_leaders_time_is_up_the_others_are_looked_for(asked):
    first, second = jobs.triple.send(1), jobs.triple.send(2)
    hasty = Waiter(first, 0.3)
    wait_until(lambda: hasty.name in asked, what="it leads")
    patient = Waiter(second, 30)

    found = codes([hasty])
    second.cancel()

    assert found + codes([patient]) == ["WAIT_TIMEOUT", "TASK_CANCELLED"]


def test_an_exception_in_the_leader_strands_nobody(asked):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}, {"a": 3}])
    waiters = [Waiter(handle, 30) for handle in handles]
    leader = leader_of(waiters, asked)

    leader.interrupt()
    leader.join(60)
    Task.objects.all().cancel()

    others = [waiter for waiter in waiters if waiter is not leader]
    assert [leader.code, *codes(others)] == ["INTERRUPTED", "TASK_CANCELLED", "TASK_CANCELLED"]


def test_who_follows_can_be_interrupted_too(asked):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}])
    waiters = [Waiter(handle, 30) for handle in handles]
    wait_until(lambda: len(room_of_threads().waiters) == 2, what="both wait")
    leader = leader_of(waiters, asked)
    follower = next(waiter for waiter in waiters if waiter is not leader)

    follower.interrupt()
    follower.join(60)
    Task.objects.all().cancel()

    assert (follower.code, *codes([leader])) == ("INTERRUPTED", "TASK_CANCELLED")


def test_an_exception_as_a_look_begins_leaves_no_connection_open(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("a look needs no thread of its own")
    handle = jobs.triple.send(1)

    class Interrupted(Waiter):
        def run(self):
            sys.settrace(self.interrupt_start)
            super().run()

        def interrupt_start(self, frame, event, arg):
            caller = frame.f_back
            starts = (frame.f_code, caller.f_code) == (threading.Event.wait.__code__, threading.Thread.start.__code__)
            if starts and caller.f_locals["self"].name == self.name:  # the thread of its look
                sys.settrace(None)
                raise Interruption

    waiter = Interrupted(handle, 30)
    found = codes([waiter])
    wait_until(lambda: waiter.name not in {thread.name for thread in threading.enumerate()}, what="the look has ended")

    assert found == ["INTERRUPTED"]
    gc.collect()  # a connection that is still open warns as it is collected, which fails the test


def test_a_leader_that_does_not_come_back_is_followed_by_another():
    room = wait._WaitGroup()
    hung, other = (wait._Waiter(uuid.uuid4(), time.monotonic() + 60, threading.Event()) for _ in range(2))
    room.join(hung)
    room.join(other)
    room.next_step(hung)
    before = room.next_step(other)

    room.polled_at -= 60
    after = room.next_step(other)

    assert not before.waiters
    assert set(after.waiters) == {hung, other}


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_cancelled_coroutine_strands_nobody_and_leaves_nothing_behind(transactional_db, who):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}, {"a": 3}])

    async def wait():
        waits = [asyncio.ensure_future(TaskHandle(handle.id).aget(30)) for handle in handles]
        await TaskHandle(handles[0].id).aget(0.2)
        out = waits.pop(0 if who == "leader" else 1)
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


def test_a_room_is_empty_when_all_have_left(asked):
    handles = jobs.triple.send_many({"a": number} for number in range(5))

    found = codes([Waiter(handle, 0.2) for handle in handles])

    room = room_of_threads()
    assert found == ["WAIT_TIMEOUT"] * 5
    assert (room.leader, room.waiters) == (None, {})
    assert not any(room.waiters for of_loop in wait._groups_of_loops.values() for room in of_loop.values())


# Transactions.


def test_in_a_transaction_a_waiter_looks_for_itself_for_only_it_sees_its_rows(asked):
    other = Waiter(jobs.triple.send(1), 30)
    leader_of([other], asked)

    with transaction.atomic():
        handle = jobs.triple.send(2)
        inside = handle.get(0.3)
        handle.cancel()
        ended = handle.get(10)

    TaskHandle(other.handle.id).cancel()
    assert (inside.err.error_code, ended.err.error_code) == ("WAIT_TIMEOUT", "TASK_CANCELLED")
    assert codes([other]) == ["TASK_CANCELLED"]


def test_in_a_transaction_of_the_caller_a_coroutine_sees_the_callers_rows(transactional_db):
    with transaction.atomic():
        handle = jobs.triple.send(2)
        result = async_to_sync(handle.aget)(0.3)

    assert result.err.error_code == "WAIT_TIMEOUT"


# Before, during and after the end; outages.


def test_before_during_and_after_the_end(transactional_db, drain, get):
    handle = jobs.triple.send(1)
    before = get(handle, 0)
    Task.objects.update(status="RUNNING")
    during = get(handle, 0.05)
    Task.objects.update(status="PENDING")

    drain()

    assert [before.err.error_code, during.err.error_code] == ["WAIT_TIMEOUT"] * 2
    assert get(handle, 0) == TaskResult(ok=[1, 2, 3])


def test_a_row_that_is_deleted_while_someone_waits_is_not_found(asked):
    handle = jobs.triple.send(1)
    waiter = Waiter(handle, 30)
    leader_of([waiter], asked)

    Task.objects.all().delete()

    assert codes([waiter]) == ["TASK_NOT_FOUND"]


@pytest.mark.parametrize("timeout", [0, 5, None])
def test_a_database_that_is_away_is_a_broker_error_and_the_next_call_asks_again(get, drain, monkeypatch, timeout):
    handle = jobs.triple.send(1)
    drain()
    connection.close()

    with monkeypatch.context() as away:
        away.setitem(connection.settings_dict, "NAME", "/no/such/database")
        result = get(handle, timeout)

    assert result.err.error_code == "BROKER_ERROR"
    assert "can't be asked" in result.err.message
    assert get(handle, timeout) == TaskResult(ok=[1, 2, 3])


def rename(table, name):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_all_who_wait_hear_that_the_database_is_away(asked):
    handles = jobs.triple.send_many({"a": number} for number in range(20))
    waiters = [Waiter(handle, 60) for handle in handles]
    leader_of(waiters, asked)

    try:
        rename("horsies_tasks", "gone")
        found = codes(waiters)
    finally:
        rename("gone", "horsies_tasks")

    assert found == ["BROKER_ERROR"] * 20
    assert handles[0].get(0).err.error_code == "WAIT_TIMEOUT"


def test_a_connection_that_died_unnoticed_is_replaced(drain, get):
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
def test_in_a_transaction_that_is_broken_get_is_a_broker_error_and_the_transaction_is_the_callers():
    handle = jobs.triple.send(1)

    with transaction.atomic():
        with pytest.raises(Error), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
        result = handle.get(0)
        transaction.set_rollback(True)

    assert result.err.error_code == ("BROKER_ERROR" if connection.vendor == "postgresql" else "WAIT_TIMEOUT")
    assert handle.get(0).err.error_code == "WAIT_TIMEOUT"
