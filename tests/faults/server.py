"""A PostgreSQL server that stands still, holds a lock, or is wrong about the time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql

from tests.chaos.cluster import Cluster


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """Stop all processes of the server with SIGSTOP: connections stay open and nothing answers."""
    pids: list[int] = []
    try:
        while fresh := [pid for pid in _processes(cluster) if pid not in pids]:  # one may have been forked meanwhile
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            pids += fresh
        yield
    finally:
        for pid in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def locked(url: str, table: str, mode: str = "ACCESS EXCLUSIVE") -> Iterator[None]:
    """Hold a lock on a table in a transaction of its own, as a migration or a dump may."""
    with psycopg.connect(url, application_name="lock of a test") as connection:
        connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.Identifier(table), sql.SQL(mode)))
        yield
        connection.rollback()


class DatabaseClock:
    """Makes ``now()`` and the like of one database differ from the machine's by a number of seconds.

    Functions of the same names stand before PostgreSQL's own in the search path. Sessions that are open when it is
    installed keep the old path; a :meth:`jump` reaches every session within moments.
    """

    NAMES = ("now", "statement_timestamp", "transaction_timestamp", "clock_timestamp")

    def __init__(self, url: str) -> None:
        self._url = url

    def install(self) -> None:
        """Put the functions into the database. Call it before the processes under test connect."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA IF NOT EXISTS faults")
            for name in map(sql.Identifier, self.NAMES):
                connection.execute(
                    sql.SQL(
                        "CREATE OR REPLACE FUNCTION faults.{}() RETURNS timestamptz LANGUAGE sql STABLE AS"
                        " $$ SELECT pg_catalog.{}()"
                        " + coalesce(current_setting('faults.clock', true), '0 s')::interval $$"
                    ).format(name, name)
                )
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET search_path = faults, public, pg_catalog").format(
                    sql.Identifier(connection.info.dbname)
                )
            )

    def jump(self, seconds: float) -> None:
        """Set the difference to the machine's clock."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            # A placeholder setting of the cluster, which a reload carries to every session.
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET faults.clock = {}").format(
                    sql.Identifier(connection.info.dbname), sql.Literal(f"{seconds} s")
                )
            )
            connection.execute(sql.SQL("ALTER SYSTEM SET faults.clock = {}").format(sql.Literal(f"{seconds} s")))
            connection.execute("SELECT pg_reload_conf()")


def _processes(cluster: Cluster) -> list[int]:
    """Return the server's processes, the first of them the postmaster."""
    postmaster = int(Path(cluster.folder, "postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [postmaster, *map(int, children)]
