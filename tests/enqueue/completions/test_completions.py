"""On PostgreSQL a process listens for completions over one connection, and workers notify only while one waits."""

import asyncio
import sys
import threading
import time
from datetime import timedelta
from statistics import median

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.db.backends.signals import connection_created

from horsies_django import TaskHandle
from horsies_django.db import postgres
from horsies_django.models import Task
from tests.conftest import wait_until
from tests.enqueue.completions.listening import all_runners_notify, connection_pids, listener_pids
from tests.jobs import tasks
from tests.notify_connection import NotifyConnection

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def needs_notifications(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("needs NOTIFY")


def wait_until_no_thread_polls():
    wait_until(lambda: not any(thread.name == "horsies-waiter" for thread in threading.enumerate()))


@pytest.fixture
def task_queries(transactional_db):
    """Return the parameters of each query for tasks, from any thread."""
    wait_until_no_thread_polls()
    queries = []

    def record(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "horsies_tasks" in sql:
            queries.append(params)
        return execute(sql, params, many, context)

    def watch(connection, **_):
        if record not in connection.execute_wrappers:
            connection.execute_wrappers.append(record)

    connection_created.connect(watch)
    with connection.execute_wrapper(record):
        yield queries
    connection_created.disconnect(watch)


def terminate(pids):
    with connection.cursor() as cursor:
        for pid in pids:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])


def send_delayed(seconds, count=1):
    return tasks.noop.with_options(run_after=timedelta(seconds=seconds)).send_many([{}] * count)


def get_while_a_thread_waits(handle, other):
    """Wait for a task in this thread while another thread waits for the other task."""
    waiters = Waiters([other])
    wait_until(lambda: waiters.started_at)
    result = handle.get(20)
    other.cancel()
    waiters.join()
    return result


async def aget_while_a_coroutine_waits(handle, other):
    """Wait for a task in this event loop while another coroutine waits for the other task."""
    async with asyncio.TaskGroup() as group:
        group.create_task(TaskHandle(other.id).aget(60))
        result = await TaskHandle(handle.id).aget(20)
        await other.acancel()
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "get", [get_while_a_thread_waits, async_to_sync(aget_while_a_coroutine_waits)], ids=["thread", "coroutine"]
)
def test_a_completion_makes_its_waiter_query_only_that_task(worker, task_queries, get):
    worker("--processes", "2", "-v0", "--name", "w", runners=2)
    with NotifyConnection.open(postgres.COMPLETIONS) as line:
        wait_until(lambda: all_runners_notify(line, 2))
    last_queries = []

    for number in range(5):
        (handle,), (other,) = send_delayed(0.5 + number / 20), send_delayed(600)
        assert get(handle, other).is_ok()
        queries = [{key for key in params if key in (handle.id, other.id)} for params in task_queries]
        together = queries.index({handle.id, other.id})
        last_queries.append({handle.id} in queries[together:])

    # A poll is for both tasks, and is sometimes earlier than the notification.
    assert any(last_queries)


class Waiters:
    """Threads that each wait for a task, with the times when each began to wait and when it had its result."""

    def __init__(self, handles):
        self.started_at, self.received_at = {}, {}
        self.threads = [threading.Thread(target=self.wait, args=(handle,), daemon=True) for handle in handles]
        for thread in self.threads:
            thread.start()

    def wait(self, handle):
        self.started_at[handle.id] = time.time()
        try:
            if TaskHandle(handle.id).get(60).is_ok():
                self.received_at[handle.id] = time.time()
        finally:
            connection.close()

    def join(self):
        for thread in self.threads:
            thread.join(60)
        return self.received_at


@pytest.mark.slow
def test_a_thousand_waiting_threads_share_one_listener(worker, task_queries):
    worker("--processes", "2", "-v0", runners=2)
    handles = send_delayed(600, 1_000)
    start = time.monotonic()
    waiters = Waiters(handles)
    listeners = wait_until(listener_pids)

    connections = connection_pids("application_name NOT LIKE 'horsies%'")
    Task.objects.all().run_now()
    received_at = waiters.join()
    seconds = time.monotonic() - start

    ended = {row.pk: row.completed_at.timestamp() for row in Task.objects.filter(pk__in=received_at)}
    delay = median(received_at[key] - max(ended[key], waiters.started_at[key]) for key in ended)
    print(
        f"{len(connections)} connections, {len(task_queries)} queries in {seconds:.1f} s, "
        f"notified after {delay * 1000:.1f} ms"
    )
    assert len(received_at) == 1_000
    assert len(listeners) == 1
    assert len(connections) == 1  # this thread's
    assert len(task_queries) < 2 * seconds / 0.01
    # A thousand threads take turns, and all of them stall with this process, but none waits for another to take the
    # lead, which takes five seconds. That a waiter is notified at all is tested above.
    assert delay < 3


@pytest.mark.slow
def test_a_waiter_joins_the_thread_that_starts_again_after_a_rest():
    first, second = send_delayed(600, 2)
    first.get(0.1)
    wait_until_no_thread_polls()
    rested_since = time.monotonic()
    # A query without an answer for as long would be one that hangs.
    wait_until(lambda: time.monotonic() > rested_since + 6)
    has_started, may_go_on = threading.Event(), threading.Event()

    def hold_at_start(*_):
        sys.setprofile(None)
        if threading.current_thread().name == "horsies-waiter":
            has_started.set()
            may_go_on.wait(60)

    threading.setprofile(hold_at_start)
    try:
        waiters = Waiters([first])
        assert has_started.wait(30)
        second.get(0.1)

        assert [thread.name for thread in threading.enumerate()].count("horsies-waiter") == 1
    finally:
        threading.setprofile(None)
        may_go_on.set()
        first.cancel()
        waiters.join()


@pytest.mark.slow
def test_a_thousand_waiting_coroutines_share_one_listener(worker):
    worker("--processes", "2", "-v0", runners=2)
    handles = send_delayed(600, 1_000)
    received_at = []

    async def wait(handle):
        result = await TaskHandle(handle.id).aget(60)
        received_at.append(time.time())
        return result

    async def all_wait():
        waits = asyncio.gather(*(wait(handle) for handle in handles))
        await asyncio.sleep(1.5)
        async with asyncio.timeout(20):
            while not (found := in_another_thread(listener_pids)):  # the event loop has stalled meanwhile
                await asyncio.sleep(0.01)
        in_another_thread(Task.objects.all().run_now)
        return found, await waits

    def in_another_thread(act):
        found = []
        thread = threading.Thread(target=lambda: (found.append(act()), connection.close()))
        thread.start()
        thread.join()
        return found[0]

    listeners, results = async_to_sync(all_wait)()

    assert all(result.is_ok() for result in results)
    assert len(listeners) == 1


@pytest.mark.slow
def test_the_listener_stops_after_the_last_waiter_has_its_result(worker):
    worker("-v0")
    (handle,) = send_delayed(600)
    waiters = Waiters([handle])

    listeners = wait_until(listener_pids)
    Task.objects.all().run_now()

    assert set(waiters.join()) == {handle.id}
    assert len(listeners) == 1
    wait_until(lambda: not listener_pids())
    wait_until_no_thread_polls()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_waiter_gets_its_result_though_the_listener_loses_its_connection(worker, task_queries):
    worker("-v0")
    (handle,) = send_delayed(600)
    waiters = Waiters([handle])

    wait_until(lambda: len(task_queries) > 1)  # the connection is set up
    terminate(listener_pids())
    Task.objects.all().run_now()

    assert set(waiters.join()) == {handle.id}


@pytest.mark.slow
@pytest.mark.sqlite
def test_workers_notify_only_while_a_process_waits(worker):
    wait_until_no_thread_polls()  # it may still renew its subscription
    worker("-v0")
    with NotifyConnection.open(postgres.COMPLETIONS) as line:
        handles = tasks.noop.send_many([{}] * 20)
        wait_until(lambda: Task.objects.completed().count() == 20)
        without_subscription = line.receive(0)

        def receive_notifications():
            line.send(postgres.CHANNEL, [postgres.SUBSCRIBE])  # a worker may not listen yet
            tasks.noop.send()
            return line.receive(0.2)

        notified = wait_until(receive_notifications)

    assert without_subscription == []
    assert notified
    assert not any(handle.id.hex[-8:] in payload for handle in handles for payload in notified)


SCRIPT = """
import os, threading
from datetime import timedelta
from django.db import connection
from tests.jobs import tasks

def wait_for_task():
    handle = tasks.noop.with_options(run_after=timedelta(seconds=1)).send()
    ok = handle.get(20).is_ok()
    connection.close()
    return ok

before = threading.Thread(target=wait_for_task)
before.start()
before.join()
{fork}
assert wait_for_task()
"""
FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads may fork here: that is the point
child = os.fork()
if not child:
    os._exit(0 if wait_for_task() else 3)
assert wait_for_task()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("fork", ["", FORK], ids=["plain", "forked"])
def test_a_process_that_waited_exits_without_output_and_may_fork(worker, manage, fork):
    worker("-v0")

    process = manage("shell", "-v0", "-c", SCRIPT.format(fork=fork), PYTHONWARNINGS="error::ResourceWarning")

    assert process.wait(60) == 0, process.output
    assert process.output == ""
