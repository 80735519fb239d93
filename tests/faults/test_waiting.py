"""Waits for a task's end on a silent database."""

import os
import signal
import time
from threading import Thread
from threading import enumerate as enumerate_threads

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections

from horsies_django import RetrievalCode, TaskStatus
from tests.conftest import wait_until
from tests.faults.server import frozen
from tests.jobs import tasks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _all_threads_use_it(own_cluster, monkeypatch):
    """Connect other threads to the test's own cluster too, but not the waiters of the next test."""
    monkeypatch.setitem(connections.settings, "default", connection.settings_dict)
    yield
    wait_until(lambda: "horsies-waiter" not in {thread.name for thread in enumerate_threads()})


def get_codes(handle, timeouts):
    """Wait in one thread for each timeout; return the error code of each, in the order in which they ended."""
    got = {}

    def get(timeout):
        got[timeout] = handle.get(timeout=timeout).err.error_code
        connections.close_all()

    threads = [Thread(target=get, args=(timeout,), daemon=True) for timeout in timeouts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return got


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not connected"])
def test_get_returns_wait_timeout_in_time_on_a_frozen_server(own_cluster, is_connected):
    handle = tasks.noop.send()
    if not is_connected:
        connection.close()

    with frozen(own_cluster):
        began = time.monotonic()
        result = handle.get(timeout=3)
        took = time.monotonic() - began

    assert result.err.error_code == RetrievalCode.WAIT_TIMEOUT
    assert 3 <= took < 40  # the server does not answer until the block ends
    assert handle.status() == TaskStatus.PENDING  # on a connection that answers


@pytest.mark.nightly
def test_aget_returns_wait_timeout_in_time_on_a_frozen_server(own_cluster):
    handle = tasks.noop.send()

    with frozen(own_cluster):
        began = time.monotonic()
        result = async_to_sync(handle.aget)(timeout=2)
        took = time.monotonic() - began

    assert result.err.error_code == RetrievalCode.WAIT_TIMEOUT
    assert 2 <= took < 40


@pytest.mark.nightly
def test_a_longer_wait_does_not_delay_shorter_ones_on_a_frozen_server(own_cluster):
    handle = tasks.noop.send()

    with frozen(own_cluster):
        got = get_codes(handle, [4, 2, 1])

    assert set(got.values()) == {RetrievalCode.WAIT_TIMEOUT}
    assert list(got)[-1] == 4


@pytest.mark.nightly
def test_another_connection_answers_while_that_of_the_waiters_hangs(own_cluster):
    waiting, ended = tasks.noop.send_many([{}, {}])
    ended.cancel()
    code = []
    thread = Thread(target=lambda: (code.append(waiting.get(60).err.error_code), connections.close_all()))
    thread.start()
    (pid,) = wait_until(waiter_pids)
    os.kill(pid, signal.SIGSTOP)
    try:
        result = wait_until(lambda: (result := ended.get(1)).err.error_code == "TASK_CANCELLED" and result)
        waiting.cancel()
        thread.join(60)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert result.is_err()
    assert code == ["TASK_CANCELLED"], "it has moved to the new connection"


def waiter_pids():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'horsies waiter' AND state = 'idle'")
        return [pid for (pid,) in cursor.fetchall()]
