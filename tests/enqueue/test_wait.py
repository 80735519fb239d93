"""Waiting for results: many waiters make as few queries as two, and each of them returns."""

import asyncio
import ctypes
import threading
import time
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


def wait_until_no_thread_polls():
    wait_until(lambda: "horsies-waiter" not in {thread.name for thread in threading.enumerate()})


@pytest.fixture
def queries(transactional_db):
    """The thread names of the queries for tasks, one for each query, on any connection."""
    wait_until_no_thread_polls()
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
    """Allow a poll for all waiters each 20 ms, of two queries for a thousand ids, and one for new ones each 5 ms."""
    return 2 * (seconds / 0.02) + seconds / 0.005 + 20


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


@pytest.mark.slow
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


# Waiters may leave.


def is_polled(waiters, queries):
    """Wait until all of these waiters are polled for."""
    seen = len(queries)
    wait_until(lambda: "horsies-waiter" in queries[seen + 2 :], what="a poll for the waiters")
    return waiters


@pytest.mark.slow
def test_a_waiting_thread_can_be_interrupted_and_the_others_get_their_results(queries):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}, {"a": 3}])
    first, *others = is_polled([Waiter(handle, 30) for handle in handles], queries)

    first.interrupt()
    first.join(60)
    Task.objects.all().cancel()

    assert [first.code, *codes(others)] == ["INTERRUPTED", "TASK_CANCELLED", "TASK_CANCELLED"]


@pytest.mark.slow
def test_a_waiter_whose_time_is_over_leaves_the_others_waiting(queries):
    first, second = jobs.triple.send(1), jobs.triple.send(2)
    hasty, patient = Waiter(first, 0.3), Waiter(second, 30)

    found = codes([hasty])
    second.cancel()

    assert found + codes([patient]) == ["WAIT_TIMEOUT", "TASK_CANCELLED"]


@pytest.mark.slow
def test_an_error_of_the_thread_that_polls_reaches_the_waiter_and_the_next_wait_starts_another(queries, monkeypatch):
    handle = jobs.triple.send(1)

    with monkeypatch.context() as fault:
        fault.setattr(wait, "of_tasks", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            handle.get(30)

    assert handle.get(0.1).err.error_code == "WAIT_TIMEOUT"


def test_a_cancelled_coroutine_strands_no_waiter_and_leaves_no_task_behind(transactional_db):
    handles = jobs.triple.send_many([{"a": 1}, {"a": 2}, {"a": 3}])

    async def wait():
        waits = [asyncio.ensure_future(TaskHandle(handle.id).aget(30)) for handle in handles]
        await TaskHandle(handles[0].id).aget(0.2)
        out = waits.pop(0)
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


@pytest.mark.slow
def test_coroutines_that_are_cancelled_while_they_begin_to_wait_strand_no_waiter(transactional_db):
    handle = jobs.triple.send(1)

    async def begin_and_cancel():
        for turns in range(200):
            waiting = asyncio.ensure_future(TaskHandle(handle.id).aget())
            for _ in range(2 + turns % 3):  # a thread begins meanwhile
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])

    asyncio.run(begin_and_cancel())

    wait_until_no_thread_polls()


@pytest.mark.slow
def test_the_thread_that_polls_ends_after_its_last_waiter(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(5))

    found = codes([Waiter(handle, 0.2) for handle in handles])

    assert found == ["WAIT_TIMEOUT"] * 5
    wait_until_no_thread_polls()


# Transactions.


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_waiter_in_a_transaction_polls_for_itself(queries):
    other = Waiter(jobs.triple.send(1), 30)
    is_polled([other], queries)

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


@pytest.mark.slow
def test_get_returns_task_not_found_when_the_row_is_deleted_during_the_wait(queries):
    handle = jobs.triple.send(1)
    waiter = Waiter(handle, 30)
    is_polled([waiter], queries)

    Task.objects.all().delete()

    assert codes([waiter]) == ["TASK_NOT_FOUND"]


@pytest.mark.parametrize("timeout", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_get_returns_broker_error_during_an_outage_and_the_result_after_it(get, drain, monkeypatch, timeout):
    handle = jobs.triple.send(1)
    drain()
    connection.close()
    wait_until_no_thread_polls()

    with monkeypatch.context() as outage:
        outage.setitem(connection.settings_dict, "NAME", "/no/such/database")
        result = get(handle, timeout)

    assert result.err.error_code == "BROKER_ERROR"
    assert "can't be asked" in result.err.message
    wait_until_no_thread_polls()  # it still has the settings of the outage
    assert get(handle, timeout) == TaskResult(ok=[1, 2, 3])


def rename(table, name):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_all_waiters_get_broker_error_during_an_outage(queries):
    handles = jobs.triple.send_many({"a": number} for number in range(20))
    waiters = [Waiter(handle, 60) for handle in handles]
    is_polled(waiters, queries)

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


@pytest.mark.slow
def test_get_sees_the_tasks_of_the_callers_search_path(queries):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no schemas")
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        cursor.execute("CREATE TABLE tenant.horsies_tasks (LIKE horsies_tasks INCLUDING ALL)")
        cursor.execute("SET search_path TO tenant, public")
    try:
        result = jobs.triple.send(1).get(0.2)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO DEFAULT")
            cursor.execute("DROP SCHEMA tenant CASCADE")

    assert result.err.error_code == "WAIT_TIMEOUT"
