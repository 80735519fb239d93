"""On PostgreSQL those who wait are told of the end, all of them over one connection; if nobody waits, nobody pays."""

import asyncio
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
from tests.enqueue.completions.listening import all_tell, backends, ears
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def only_where_somebody_can_tell(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("nobody can tell")


@pytest.fixture
def asked(transactional_db):
    """The parameters of each query for tasks, in whatever thread."""
    queries = []

    def count(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "horsies_tasks" in sql:
            queries.append(params)
        return execute(sql, params, many, context)

    def watch(connection, **_):
        if count not in connection.execute_wrappers:
            connection.execute_wrappers.append(count)

    connection_created.connect(watch)
    with connection.execute_wrapper(count):
        yield queries
    connection_created.disconnect(watch)


def terminate(pids):
    with connection.cursor() as cursor:
        for pid in pids:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])


def later(seconds, count=1):
    return tasks.noop.with_options(run_after=timedelta(seconds=seconds)).send_many([{}] * count)


def get_beside(handle, other):
    """Wait for a task in this thread while another thread waits for another."""
    waiters = Waiters([other])
    wait_until(lambda: waiters.began)
    result = handle.get(20)
    other.cancel()
    waiters.join()
    return result


async def aget_beside(handle, other):
    """Wait for a task in this event loop while another coroutine waits for another."""
    async with asyncio.TaskGroup() as group:
        group.create_task(TaskHandle(other.id).aget(60))
        result = await TaskHandle(handle.id).aget(20)
        await other.acancel()
    return result


@pytest.mark.parametrize("get", [get_beside, async_to_sync(aget_beside)], ids=["thread", "coroutine"])
def test_a_completion_makes_its_waiter_query_only_that_task(worker, asked, get):
    worker("--processes", "2", "-v0", "--name", "w", runners=2)
    with postgres.NotifyConnection("default", postgres.COMPLETIONS, "test") as line:
        wait_until(lambda: all_tell(line, 2))
    asked_alone = []

    for number in range(5):
        (handle,), (other,) = later(0.5 + number / 20), later(600)
        assert get(handle, other).is_ok()
        keys = [[key for key in params if key in (handle.id, other.id)] for params in asked]
        asked_alone.append(keys.count([handle.id]))

    # Once as it begins to wait. A poll asks for both, and may come first now and then.
    assert max(asked_alone) >= 2


class Waiters:
    """Threads that wait, when each of them began to, and when it knew."""

    def __init__(self, handles):
        self.began, self.knew = {}, {}
        self.threads = [threading.Thread(target=self.wait, args=(handle,), daemon=True) for handle in handles]
        for thread in self.threads:
            thread.start()

    def wait(self, handle):
        self.began[handle.id] = time.time()
        try:
            if TaskHandle(handle.id).get(60).is_ok():
                self.knew[handle.id] = time.time()
        finally:
            connection.close()

    def join(self):
        for thread in self.threads:
            thread.join(60)
        return self.knew


@pytest.mark.slow
def test_a_thousand_waiting_threads_share_one_listener(worker, asked):
    worker("--processes", "2", "-v0", runners=2)
    handles = later(3, 1_000)
    start = time.monotonic()
    waiters = Waiters(handles)
    wait_until(ears)

    connections = backends("application_name NOT LIKE 'horsies%'")
    listeners = ears()
    knew = waiters.join()
    seconds = time.monotonic() - start

    ended = {row.pk: row.completed_at.timestamp() for row in Task.objects.filter(pk__in=knew)}
    late = median(knew[key] - max(ended[key], waiters.began[key]) for key in ended)
    print(f"{len(connections)} connections, {len(asked)} queries in {seconds:.1f} s, told after {late * 1000:.1f} ms")
    assert len(knew) == 1_000
    assert len(listeners) == 1
    assert len(connections) <= 3  # this one's, the leader's, and that of one who leads no more
    assert len(asked) < 2 * seconds / 0.01
    # A thousand threads take turns, and all of them stand still with this process; but nobody waits for another to take
    # the lead, which takes five seconds. How soon one of few is told is asked above.
    assert late < 3


@pytest.mark.slow
def test_a_thousand_waiting_coroutines_share_one_listener(worker):
    worker("--processes", "2", "-v0", runners=2)
    handles = later(3, 1_000)
    late = []

    async def wait(handle):
        result = await TaskHandle(handle.id).aget(60)
        late.append(time.time())
        return result

    async def all_wait():
        waits = asyncio.gather(*(wait(handle) for handle in handles))
        await asyncio.sleep(1.5)
        async with asyncio.timeout(20):
            while not (found := ears_of_another_thread()):  # it has stood still meanwhile
                await asyncio.sleep(0.01)
        return found, await waits

    def ears_of_another_thread():
        found = []
        thread = threading.Thread(target=lambda: (found.extend(ears()), connection.close()))
        thread.start()
        thread.join()
        return found

    listeners, results = async_to_sync(all_wait)()

    assert all(result.is_ok() for result in results)
    assert len(listeners) == 1


def test_the_listener_stops_after_the_last_waiter_has_its_result(worker):
    worker("-v0")
    (handle,) = later(0.5)
    waiters = Waiters([handle])

    had = wait_until(ears)

    assert set(waiters.join()) == {handle.id}
    assert len(had) == 1
    wait_until(lambda: not ears())
    wait_until(lambda: not any(thread.name == "horsies-completion-listener" for thread in threading.enumerate()))


def test_a_waiter_gets_its_result_though_the_listener_loses_its_connection(worker):
    worker("-v0")
    (handle,) = later(1.5)
    waiters = Waiters([handle])
    wait_until(ears)

    terminate(ears())

    assert set(waiters.join()) == {handle.id}


def test_workers_notify_only_while_a_process_waits(worker):
    wait_until(lambda: not ears())  # one of before lingers, and may say so once more
    worker("-v0")
    with postgres.NotifyConnection("default", postgres.COMPLETIONS, "test") as line:
        handles = tasks.noop.send_many([{}] * 20)
        wait_until(lambda: Task.objects.completed().count() == 20)
        unasked = line.receive(0)

        def told_of():
            line.notify(postgres.CHANNEL, [postgres.SUBSCRIBE])  # a worker may not listen yet
            tasks.noop.send()
            return line.receive(0.2)

        told = wait_until(told_of)

    assert unasked == []
    assert told
    assert not any(handle.id.hex[-8:] in payload for handle in handles for payload in told)


SCRIPT = """
import os, threading
from datetime import timedelta
from django.db import connection
from tests.jobs import tasks

def waits():
    handle = tasks.noop.with_options(run_after=timedelta(seconds=1)).send()
    ok = handle.get(20).is_ok()
    connection.close()
    return ok

before = threading.Thread(target=waits)
before.start()
before.join()
{fork}
assert waits()
"""
FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads may fork here: that is the point
child = os.fork()
if not child:
    os._exit(0 if waits() else 3)
assert waits()
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
