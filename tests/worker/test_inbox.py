"""What the producer waits for: its inbox, and what the database says on the producer's own connection."""

import socket
import threading

import pytest
from django.db import Error, connection, connections

from horsies_django.db import postgres
from horsies_django.db.notifications import TaskReady
from horsies_django.worker.connection import own_connection
from horsies_django.worker.inbox import Command, Inbox
from tests.conftest import wait_until


class Line:
    """Something to be heard that is no database."""

    def __init__(self, inbox):
        self.inbox = inbox
        self.ours, self.theirs = socket.socketpair()

    def fileno(self):
        return self.ours.fileno()

    def receive(self, *, is_readable):
        if is_readable:
            self.ours.recv(100)
            self.inbox.put(Command.POLL)


@pytest.fixture
def line():
    inbox = Inbox()
    line = Line(inbox)
    inbox.attach(line)
    yield line
    inbox.detach()
    line.ours.close()
    line.theirs.close()


def test_who_waits_hears_what_is_said(line):
    threading.Timer(0.05, line.theirs.send, (b"!",)).start()

    assert line.inbox.take(10) == [Command.POLL]


def test_who_waits_is_woken_by_what_another_thread_puts_in(line):
    threading.Timer(0.05, line.inbox.put, (Command.STOP,)).start()

    assert line.inbox.take(10) == [Command.STOP]


def test_what_was_put_in_before_is_there_at_once(line):
    line.inbox.put(Command.POLL)
    line.inbox.put(Command.STOP)

    assert line.inbox.take(10) == [Command.POLL, Command.STOP]
    assert line.inbox.take(0) == []


def test_many_threads_put_in_and_nothing_is_left_behind(line):
    threads = [threading.Thread(target=lambda: [line.inbox.put(Command.POLL) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()

    count = 0
    while count < 2_000:
        taken = line.inbox.take(10)
        assert taken, "somebody was not heard"
        count += len(taken)

    assert line.inbox.take(0) == []


@pytest.mark.parametrize("is_async", [None, False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_wake_is_read_as_it_was_written(is_async, later):
    wake = TaskReady("emails", later, None if later else is_async)

    assert TaskReady.loads(wake.dumps()) == wake


@pytest.fixture
def own_line(transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("no LISTEN here")
    with own_connection("default", "test", is_busy=True):
        line = postgres.ConnectionListener("default", "test_hearing")
        connections["default"].ensure_connection()
        assert line.listen()
        yield line


def say(text):
    """Say something on another connection."""
    with postgres.NotifyConnection("default", None, "test") as line:
        line.notify("test_hearing", [text])


def test_what_comes_beside_an_answer_is_heard_although_nothing_can_be_read_any_more(own_line):
    say("now")

    def ask():
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        return own_line.receive(is_readable=False)

    assert wait_until(ask) == ["now"]


def test_a_connection_listens_once_and_the_next_one_anew(own_line):
    assert not own_line.listen()

    connections["default"].close()
    assert own_line.fileno() is None
    assert own_line.receive(is_readable=False) == []
    connections["default"].ensure_connection()

    assert own_line.listen()
    say("again")
    assert wait_until(lambda: own_line.receive(is_readable=True)) == ["again"]


def test_a_connection_that_is_lost_is_an_error_once_and_then_gone(own_line):
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with postgres.NotifyConnection("default", None, "test") as line:
        line._connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    def hear():
        try:
            return own_line.receive(is_readable=True)
        except Error as error:
            return [error]

    (lost,) = wait_until(hear)
    assert isinstance(lost, Error)
    assert own_line.fileno() is None
    assert own_line.receive(is_readable=True) == []


@pytest.mark.django_db(transaction=True)
def test_a_runner_that_listens_has_one_connection(worker):
    if connection.vendor != "postgresql":
        pytest.skip("no LISTEN here")
    worker("-v0")

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity, horsies_workers"
            " WHERE datname = current_database() AND starts_with(application_name, left('horsies ' || id, 63))"
        )
        assert cursor.fetchone() == (1,)


@pytest.mark.django_db(transaction=True)
def test_who_shares_a_connection_with_others_does_not_listen_on_it():
    """Behind a pooler its own words would come back to it, and hardly any others."""
    if not postgres.can_listen("default"):
        return
    with own_connection("default", "pooled"):  # as where DISABLE_SERVER_SIDE_CURSORS says so
        connections["default"].ensure_connection()
        assert not postgres.ConnectionListener("default", postgres.CHANNEL).listen()
    with own_connection("default", "direct", is_busy=True):
        connections["default"].ensure_connection()
        assert postgres.ConnectionListener("default", postgres.CHANNEL).listen()
