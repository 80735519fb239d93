"""A PostgreSQL server that is frozen, holds a lock, fails over, or has a wrong clock."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from tests.chaos.cluster import Cluster
from tests.faults.network import Proxy


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """Stop all processes of the server with SIGSTOP: connections stay open and nothing answers."""
    pids: list[int] = []
    try:
        while fresh := [pid for pid in _processes(cluster) if pid not in pids]:  # the server may fork meanwhile
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
    """Hold a lock on a table in a separate transaction, like a migration or a dump."""
    with psycopg.connect(url, application_name="lock of a test") as connection:
        connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(sql.Identifier(table), sql.SQL(mode)))
        yield
        connection.rollback()


class Replica:
    """An asynchronous replica that follows its primary through a proxy, and lags while that is cut."""

    def __init__(self, primary: Cluster) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="horsies-replica-")
        self.socket_folder = self._folder.name
        self.url = f"postgresql://postgres@/postgres?host={self.socket_folder}"
        if primary.user:
            shutil.chown(self.socket_folder, primary.user)
        self._primary = primary
        self._proxy = Proxy(primary.socket_folder)

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        source = f"host={self._proxy.address} port={self._proxy.port} user=postgres"
        self._primary.run("pg_basebackup", "-D", self.socket_folder, "-R", "-c", "fast", "-d", source)
        # The primary keeps its socket in its data folder, so the backup has a copy of the lock.
        Path(self.socket_folder, ".s.PGSQL.5432.lock").unlink()
        self._ctl("start", "-o", f'-h "" -k {self.socket_folder}', "-l", str(Path(self.socket_folder, "log")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ctl("stop", "-m", "immediate")
        self._proxy.__exit__(kind, error, trace)
        self._folder.cleanup()

    def has_caught_up(self) -> bool:
        """Whether the replica has everything that the primary has committed."""
        with psycopg.connect(self._primary.url) as there, psycopg.connect(self.url) as here:
            (written,) = there.execute("SELECT pg_current_wal_lsn()").fetchone() or (None,)
            (replayed,) = here.execute("SELECT pg_last_wal_replay_lsn() >= %s", [written]).fetchone() or (False,)
        return replayed

    def lag(self) -> None:
        """Stop receiving changes."""
        self._proxy.cut()

    def take_over(self) -> None:
        """Kill the primary, and replace it."""
        postmaster, *others = _processes(self._primary)
        os.kill(postmaster, signal.SIGKILL)
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        Path(self._primary.folder, "postmaster.pid").unlink()
        self._ctl("promote")

    def _ctl(self, *arguments: str) -> None:
        self._primary.run("pg_ctl", "-w", "-D", self.socket_folder, *arguments)


class DatabaseClock:
    """Shifts ``now()`` and similar functions of one database by a number of seconds.

    Functions of the same names precede PostgreSQL's own in the search path. Sessions that are open at :meth:`install`
    keep the old path; a :meth:`jump` reaches every session within moments.
    """

    NAMES = ("now", "statement_timestamp", "transaction_timestamp", "clock_timestamp")

    def __init__(self, url: str) -> None:
        self._url = url

    def install(self) -> None:
        """Create the functions. Call it before the processes under test connect."""
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
            # The defaults of columns refer to PostgreSQL's own function.
            defaults = connection.execute(
                "SELECT table_name, column_name FROM information_schema.columns"
                " WHERE column_default = 'statement_timestamp()'"
            )
            for names in defaults.fetchall():
                table, column = map(sql.Identifier, names)
                change = sql.SQL("ALTER TABLE {} ALTER {} SET DEFAULT faults.statement_timestamp()")
                connection.execute(change.format(table, column))
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET search_path = faults, public, pg_catalog").format(
                    sql.Identifier(connection.info.dbname)
                )
            )

    def jump(self, seconds: float) -> None:
        """Set the difference from the machine's clock."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            # A reload passes this setting of the cluster to every session that has none from its database.
            connection.execute(sql.SQL("ALTER SYSTEM SET faults.clock = {}").format(sql.Literal(f"{seconds} s")))
            connection.execute("SELECT pg_reload_conf()")


def _processes(cluster: Cluster) -> list[int]:
    """Return the server's processes, the first of them the postmaster."""
    postmaster = int(Path(cluster.folder, "postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [postmaster, *map(int, children)]
