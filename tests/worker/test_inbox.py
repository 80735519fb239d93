"""The inbox that a producer waits for, and the notifications on its connection."""

import socket
import threading
from types import SimpleNamespace

import pytest
from django.db import Error, connection, connections

from horsies_django.db import postgres
from horsies_django.db.connection import own_connection
from horsies_django.db.connection_listener import ConnectionListener
from horsies_django.db.notifications import SCHEDULES_CHANGED, TaskReady
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.execution import ExecutionResult
from horsies_django.worker.inbox import Command, Gather, Inbox
from horsies_django.worker.listener import Listener
from horsies_django.worker.started_registry import Notice
from tests.conftest import wait_until
from tests.notify_connection import NotifyConnection


class SocketListener:
    """A listener on a socket instead of a database."""

    def __init__(self, inbox):
        self.inbox = inbox
        self.local, self.remote = socket.socketpair()

    def fileno(self):
        return self.local.fileno()

    def receive(self, *, is_readable):
        if is_readable:
            self.local.recv(100)
            self.inbox.put(Command.POLL)


@pytest.fixture
def listener():
    inbox = Inbox()
    listener = SocketListener(inbox)
    inbox.attach(listener)
    yield listener
    inbox.detach()
    listener.local.close()
    listener.remote.close()


def test_a_notification_wakes_a_waiting_producer(listener):
    threading.Timer(0.05, listener.remote.send, (b"!",)).start()

    assert listener.inbox.take(10) == [Command.POLL]


def test_a_command_of_another_thread_wakes_a_waiting_producer(listener):
    threading.Timer(0.05, listener.inbox.put, (Command.STOP,)).start()

    assert listener.inbox.take(10) == [Command.STOP]


def test_commands_put_before_a_wait_are_returned_at_once(listener):
    listener.inbox.put(Command.POLL)
    listener.inbox.put(Command.STOP)

    assert listener.inbox.take(10) == [Command.POLL, Command.STOP]
    assert listener.inbox.take(0) == []


def test_commands_of_many_threads_are_all_returned(listener):
    threads = [
        threading.Thread(target=lambda: [listener.inbox.put(Command.POLL) for _ in range(500)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()

    count = 0
    while count < 2_000:
        taken = listener.inbox.take(10)
        assert taken, "a command was lost"
        count += len(taken)

    assert listener.inbox.take(0) == []


class Ended:
    """An execution after which the same thread runs another one, or none."""

    def __init__(self, *, has_next):
        self.has_next, self.started_at = has_next, 0.0
        self.claimed = SimpleNamespace(workflow_id=None, limit_key=None)


def ended(*, has_next=False, **columns):
    result = ExecutionResult(Ended(has_next=has_next), completion=None)
    vars(result.claimed).update(columns)
    return result


@pytest.mark.parametrize("is_listening", [True, False])
def test_results_wake_a_gathering_producer_only_when_a_thread_has_nothing_left_to_run(listener, is_listening):
    inbox = listener.inbox if is_listening else Inbox()
    results = [ended(has_next=True), ended(has_next=True), ended(has_next=False)]
    taken, is_woken = [], threading.Event()

    def gather():
        taken.extend(inbox.take(60, Gather.ALL))
        is_woken.set()

    threading.Thread(target=gather, daemon=True).start()
    wait_until(lambda: inbox._gather is Gather.ALL)
    for result in results[:2]:
        inbox.put(result)
    assert not is_woken.wait(0.2)
    inbox.put(results[2])

    assert is_woken.wait(10)
    assert taken == results


@pytest.mark.parametrize("is_listening", [True, False])
def test_results_wait_for_the_next_claim_unless_a_workflow_or_a_limit_waits_for_them(listener, is_listening):
    inbox = listener.inbox if is_listening else Inbox()
    waiting, urgent = [ended(), ended()], [ended(workflow_id="a"), ended(limit_key="b")]
    taken, is_woken = [], threading.Semaphore(0)

    def gather():
        for _ in urgent:
            taken.append(inbox.take(60, Gather.RESULTS))
            is_woken.release()

    threading.Thread(target=gather, daemon=True).start()
    for first, last in zip(waiting, urgent, strict=True):
        wait_until(lambda: inbox._gather is Gather.RESULTS)
        inbox.put(first)
        inbox.put(last)
        assert is_woken.acquire(timeout=10)

    assert taken == [[first, last] for first, last in zip(waiting, urgent, strict=True)]


def test_a_notification_takes_along_the_results_that_wait(listener):
    results = [ended(), ended()]
    threading.Timer(0.05, lambda: ([*map(listener.inbox.put, results)], listener.remote.send(b"!"))).start()

    assert listener.inbox.take(10, Gather.RESULTS) == [*results, Command.POLL]
    for result in results:
        listener.inbox.put(result)
    assert listener.inbox.take(10, Gather.RESULTS) == results


def test_a_command_wakes_a_gathering_producer(listener):
    threading.Timer(0.05, listener.inbox.put, (Command.STOP,)).start()

    assert listener.inbox.take(10, Gather.ALL) == [Command.STOP]


def test_a_gathering_producer_receives_no_notification(listener):
    listener.remote.send(b"!")

    assert listener.inbox.take(0.01, Gather.ALL) == []
    assert listener.inbox.take(10) == [Command.POLL]


@pytest.mark.parametrize("is_async", [None, False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_task_ready_notification_round_trips(is_async, later):
    wake = TaskReady("emails", later, None if later else is_async)

    assert TaskReady.loads(wake.dumps()) == wake


@pytest.fixture
def database_listener(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no LISTEN")
    with own_connection("default", "test", is_busy=True):
        listener = ConnectionListener("default", "test_channel")
        connections["default"].ensure_connection()
        assert listener.listen()
        yield listener


def notify(text):
    """Send a notification on another connection."""
    with NotifyConnection.open() as sender:
        sender.send("test_channel", [text])


def test_a_notification_read_along_with_a_query_result_is_received(database_listener):
    notify("now")

    def query_and_receive():
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        return database_listener.receive(is_readable=False)

    assert wait_until(query_and_receive) == ["now"]


def test_a_connection_listens_once_and_a_new_connection_listens_again(database_listener):
    assert not database_listener.listen()

    connections["default"].close()
    assert database_listener.fileno() is None
    assert database_listener.receive(is_readable=False) == []
    connections["default"].ensure_connection()

    assert database_listener.listen()
    notify("again")
    assert wait_until(lambda: database_listener.receive(is_readable=True)) == ["again"]


def test_a_lost_connection_raises_one_error(database_listener):
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with NotifyConnection.open() as sender:
        sender.execute("SELECT pg_terminate_backend(%s)", [pid])

    def receive():
        try:
            return database_listener.receive(is_readable=True)
        except Error as error:
            return [error]

    (lost,) = wait_until(receive)
    assert isinstance(lost, Error)
    assert database_listener.fileno() is None
    assert database_listener.receive(is_readable=True) == []


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_a_listening_runner_has_one_connection(worker):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no LISTEN")
    worker("-v0")

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity, horsies_workers"
            " WHERE datname = current_database() AND starts_with(application_name, left('horsies ' || id, 63))"
        )
        assert cursor.fetchone() == (1,)


@pytest.mark.django_db(transaction=True)
def test_a_pooled_connection_does_not_listen():
    """Behind a pooler it would receive its own notifications, and few others."""
    if not postgres.can_listen("default"):
        return
    with own_connection("default", "pooled"):  # as with DISABLE_SERVER_SIDE_CURSORS
        connections["default"].ensure_connection()
        assert not ConnectionListener("default", postgres.CHANNEL).listen()
    with own_connection("default", "direct", is_busy=True):
        connections["default"].ensure_connection()
        assert ConnectionListener("default", postgres.CHANNEL).listen()


@pytest.mark.django_db(transaction=True)
def test_a_runner_reports_changes_of_schedules_and_that_it_hears_of_them():
    """Its supervisor's scheduler, which does not listen, relies on that."""
    if not postgres.can_listen("default"):
        return
    notices, inbox = [], Inbox()
    with own_connection("default", "test", is_busy=True):
        connections["default"].ensure_connection()
        listener = Listener(WorkerConfig.of("default"), "w", inbox, notices.append)
        listener.start()
        try:
            inbox.take(0.0)
            assert notices == [Notice.SCHEDULES_CHANGED], "some may have changed before it listened"
            with NotifyConnection.open() as sender:
                sender.send(postgres.CHANNEL, [f"{postgres.PING}w", SCHEDULES_CHANGED])
            wait_until(lambda: (inbox.take(0.1), len(notices) == 3)[1])
        finally:
            listener.stop()

    assert notices[1:] == [Notice.LISTENING, Notice.SCHEDULES_CHANGED]
