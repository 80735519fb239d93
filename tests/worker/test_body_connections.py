"""How long a worker keeps the connections of bodies, and what one body finds in the session of another."""

import threading

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.backends.signals import connection_created

from horsies_django import task
from tests.conftest import wait_until
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no sessions on a server")

#: What a session has by default, and what a body may leave in it.
STATE = "SELECT current_user, current_setting('search_path'), current_setting('TimeZone'), pg_backend_pid()"
LEAVE = (
    "SET ROLE pg_monitor; SET search_path TO nowhere; SET TIME ZONE 'Asia/Tokyo'; "
    "CREATE TEMP TABLE left_behind (id int); SELECT pg_advisory_lock(4711)"
)
LEFT = "SELECT to_regclass('pg_temp.left_behind') IS NOT NULL, count(*) FROM pg_locks WHERE locktype = 'advisory'"


@task
def look():
    return Entry.objects.count()


@task
async def alook():
    return await Entry.objects.acount()


def row_of(sql):
    """Return the row that the last of these statements finds."""
    with connection.cursor() as cursor:
        for statement in sql.split("; "):
            cursor.execute(statement)
        return list(cursor.fetchone())


@task
def query(sql):
    return row_of(sql)


@task
async def aquery(sql):
    return await sync_to_async(row_of)(sql)


def is_closed_elsewhere():
    """Whether the connection of the body that stored its process is gone."""
    entry = Entry.objects.filter(key__startswith="process ").first()
    return entry and row_of(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {entry.key.split()[1]}") == [0]


def leave_process():
    Entry.objects.create(key=f"process {row_of('SELECT pg_backend_pid()')[0]}")


@task
def wait_for_close():
    wait_until(is_closed_elsewhere)


@task
def connect():
    leave_process()


@task
async def await_close():
    await sync_to_async(wait_until)(is_closed_elsewhere)


@task
async def aconnect():
    await sync_to_async(leave_process)()


def row_before_the_server_ends_the_session():
    """Return a row; the driver does not learn that the connection is gone."""
    other = connection.copy()
    row = row_of("SELECT pg_backend_pid()")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", row)
    other.close()
    return row


@task
def lose_connection():
    return row_before_the_server_ends_the_session()


@task
async def alose_connection():
    return await sync_to_async(row_before_the_server_ends_the_session)()


BODIES = {"threads": (look, query), "coroutines": (alook, aquery)}
WAITS = {"threads": (wait_for_close, connect), "coroutines": (await_close, aconnect)}


@pytest.fixture
def work(settings, monkeypatch, drain):
    """Drain with these options of the worker and these settings of the database; return the connects of bodies."""
    connects = []

    def on_connect(**_):
        if threading.current_thread().name.startswith(("horsies-slot", "horsies-coroutine")):
            connects.append(threading.get_ident())

    def run(database=(), slots=1, **options):
        for name, value in dict(database).items():
            monkeypatch.setitem(connections.settings["default"], name, value)
        default = settings.TASKS["default"]
        settings.TASKS = {"default": default | {"OPTIONS": default["OPTIONS"] | {"worker": options}}}
        connection_created.connect(on_connect)
        drain(threads=slots, async_slots=slots)
        connection_created.disconnect(on_connect)
        return len(connects)

    return run


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    ("options", "max_age", "connects"),
    [
        ({}, 0, 1),
        ({"conn_max_age": None}, 0, 1),
        ({"conn_max_age": 0}, None, 5),
        ({"conn_max_age": "inherit"}, 0, 5),
        ({"conn_max_age": "inherit"}, None, 1),
    ],
)
def test_the_worker_decides_how_long_bodies_keep_their_connections(work, kind, options, max_age, connects):
    look, _ = BODIES[kind]
    handles = look.send_many({} for _ in range(5))

    assert work({"CONN_MAX_AGE": max_age}, **options) == connects
    assert [handle.value(0) for handle in handles] == [0] * 5


@on_postgresql
@pytest.mark.parametrize("kind", WAITS)
def test_an_idle_thread_closes_a_connection_that_has_become_too_old(work, kind):
    wait, connect = WAITS[kind]
    handles = [wait.send(), connect.send()]

    work(slots=2, conn_max_age=0.01)

    assert [handle.status() for handle in handles] == ["COMPLETED"] * 2


@on_postgresql
@pytest.mark.parametrize(("lose", "query"), [(lose_connection, query), (alose_connection, aquery)])
def test_a_body_gets_another_connection_if_its_own_is_gone(work, lose, query):
    lost, handle = lose.send(), query.send("SELECT pg_backend_pid()")

    work({"CONN_HEALTH_CHECKS": False})

    assert handle.value(0) != lost.value(0)


@on_postgresql
@pytest.mark.parametrize("kind", BODIES)
def test_a_body_finds_what_another_has_set_in_the_session(work, kind):
    _, query = BODIES[kind]
    leave, look = query.send(f"{LEAVE}; {STATE}"), query.send(STATE)

    work()

    assert leave.value(0) == look.value(0)
    assert look.value(0)[:3] == ["pg_monitor", "nowhere", "Asia/Tokyo"]


@on_postgresql
@pytest.mark.parametrize("kind", BODIES)
def test_with_reset_sessions_each_body_finds_the_session_as_django_has_made_it(work, kind):
    _, query = BODIES[kind]
    before, leave, after = query.send(STATE), query.send(f"{LEAVE}; {STATE}"), query.send(STATE)
    left = query.send(LEFT)

    work({"TIME_ZONE": "Europe/Berlin"}, reset_sessions=True)

    assert leave.value(0)[0] == "pg_monitor"
    assert after.value(0) == before.value(0)  # with the same process of the server
    assert after.value(0)[2] == "Europe/Berlin"
    assert left.value(0) == [False, 0]


@on_postgresql
def test_with_reset_sessions_a_body_has_the_role_that_the_settings_name(work):
    options = connection.settings_dict["OPTIONS"]
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE horsies_assumed SUPERUSER")
    try:
        leave, look = query.send(f"{LEAVE}; {STATE}"), query.send(STATE)
        work({"OPTIONS": options | {"assume_role": "horsies_assumed"}}, reset_sessions=True)
        assert leave.value(0)[0] == "pg_monitor"
        assert look.value(0)[0] == "horsies_assumed"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP ROLE horsies_assumed")
