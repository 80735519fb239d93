"""The fault tools: each has its effect, and is undone afterwards."""

import time

import psycopg
import pytest

from tests.faults.server import DatabaseClock, frozen, locked

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

#: Seconds without an answer after which a server counts as silent.
SILENT = 1


def connect(url, **options):
    return psycopg.connect(url, autocommit=True, connect_timeout=5, **options)


def ask(connection):
    """Send a statement, and do not wait for its answer."""
    connection.pgconn.send_query(b"SELECT 1")
    connection.pgconn.flush()


def has_answered(connection, limit=20.0):
    """Return whether the answer comes within ``limit`` seconds; never block, because libpq would hold the GIL."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        connection.pgconn.consume_input()
        if not connection.pgconn.is_busy():
            while connection.pgconn.get_result() is not None:
                pass
            return True
        time.sleep(0.01)
    return False


def test_a_cut_proxy_holds_bytes_back_and_delivers_them_when_it_heals(proxy):
    with connect(proxy.url) as connection:
        proxy.cut()
        ask(connection)
        assert not has_answered(connection, SILENT)
        proxy.heal()
        assert has_answered(connection)
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_a_slow_proxy_delays_each_direction(proxy):
    with connect(proxy.url) as connection:
        proxy.delay = 0.2
        began = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - began >= 0.4


def test_a_reset_of_the_proxy_ends_its_connections(proxy):
    with connect(proxy.url) as connection:
        proxy.reset()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_host_that_vanishes_drops_packets_until_it_comes_back(host):
    with connect(host.url, tcp_user_timeout=60_000) as connection:
        host.vanish()
        ask(connection)
        assert not has_answered(connection, SILENT)
        host.come_back()
        assert has_answered(connection)
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_tcp_user_timeout_ends_a_connection_to_a_vanished_host(host):
    with connect(host.url, tcp_user_timeout=1_000) as connection:
        host.vanish()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_frozen_server_answers_nothing_until_it_thaws(own_cluster):
    with connect(own_cluster.url) as connection:
        with frozen(own_cluster):
            ask(connection)
            assert not has_answered(connection, SILENT)
        assert has_answered(connection)
        assert connection.execute("SELECT 2").fetchone() == (2,)


def test_a_table_lock_blocks_other_sessions_until_it_is_released(own_cluster):
    with connect(own_cluster.url, options="-c lock_timeout=200") as connection:
        with locked(own_cluster.url, "horsies_tasks"), pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SELECT 1 FROM horsies_tasks")
        connection.execute("SELECT 1 FROM horsies_tasks")


def test_a_jump_of_the_databases_clock_reaches_open_sessions(own_cluster):
    clock = DatabaseClock(own_cluster.url)
    clock.install()
    ahead = "SELECT extract(epoch FROM statement_timestamp() - pg_catalog.statement_timestamp())::int"
    with connect(own_cluster.url) as connection:
        assert connection.execute(ahead).fetchone() == (0,)
        clock.jump(3_600)
        deadline = time.monotonic() + 20
        while (found := connection.execute(ahead).fetchone()) != (3_600,) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == (3_600,)
