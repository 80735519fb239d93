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
from tests.conftest import wait_until
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
    """A server that follows its primary through a proxy, and lags while that is cut.

    With a ``name`` it can be one of the primary's ``synchronous_standby_names``.
    """

    def __init__(self, primary: Cluster, name: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="horsies-replica-")
        self.name = name
        self.folder = self.socket_folder = self._folder.name
        self.url = f"postgresql://postgres@/postgres?host={self.socket_folder}"
        if primary.user:
            shutil.chown(self.socket_folder, primary.user)
        self._programs = primary
        self._primary: Cluster | Replica = primary
        self._proxy = Proxy(primary.socket_folder)

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        name = f"application_name={self.name}" if self.name else ""
        source = f"host={self._proxy.address} port={self._proxy.port} user=postgres {name}"
        self._programs.run("pg_basebackup", "-D", self.folder, "-R", "-c", "fast", "-d", source)
        start_copy(self._programs, self.folder)
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

    def stop_receiving(self) -> int:
        """End the connection to the primary, and return how far its log has been received."""
        self._proxy.redirect("nowhere")
        self._proxy.heal()
        with psycopg.connect(self.url, autocommit=True) as connection:
            wait_until(
                lambda: not connection.execute("SELECT FROM pg_stat_wal_receiver").rowcount, what="it receives nothing"
            )
            (position,) = connection.execute(
                "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'"
            ).fetchone() or (0,)
        return int(position)

    def lag(self) -> None:
        """Stop receiving changes."""
        self._proxy.cut()

    def catch_up(self) -> None:
        """Receive changes again."""
        self._proxy.heal()

    def promote(self) -> None:
        """Become a primary."""
        self._ctl("promote")

    def follow(self, primary: Replica) -> None:
        """Follow another primary."""
        self._primary = primary
        self._proxy.redirect(primary.socket_folder)
        self._proxy.heal()

    def take_over(self) -> None:
        """Kill the primary, and replace it."""
        kill(self._programs)
        self.promote()

    def _ctl(self, *arguments: str) -> None:
        self._programs.run("pg_ctl", "-w", "-D", self.folder, *arguments)


class Backup:
    """A base backup of a server and the archive of its log, from which another server is restored to a point."""

    def __init__(self, original: Cluster) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="horsies-backup-")
        self._archive, self.folder = Path(self._folder.name, "archive"), str(Path(self._folder.name, "data"))
        self.socket_folder = self.folder
        self.url = f"postgresql://postgres@/postgres?host={self.folder}"
        self._original = original
        for folder in (self._folder.name, self._archive, self.folder):
            Path(folder).mkdir(mode=0o700, exist_ok=True)
            if original.user:
                shutil.chown(folder, original.user)

    def __enter__(self) -> Self:
        with psycopg.connect(self._original.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET archive_mode = on")
            connection.execute(f"ALTER SYSTEM SET archive_command = 'cp %p {self._archive}/%f'")
        self._original.restart("fast")
        source = f"host={self._original.socket_folder} user=postgres"
        self._original.run("pg_basebackup", "-D", self.folder, "-c", "fast", "-d", source)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Path(self.folder, "postmaster.pid").exists():
            self._original.run("pg_ctl", "-w", "-D", self.folder, "stop", "-m", "immediate")
        self._folder.cleanup()

    def mark(self, point: str) -> None:
        """Name the present point of the log."""
        with psycopg.connect(self._original.url) as connection:
            connection.execute("SELECT pg_create_restore_point(%s)", [point])

    def restore(self, point: str) -> None:
        """Stop the original, which archives the rest of its log, and start the backup as it was at the point."""
        self._original.stop("fast")
        with Path(self.folder, "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"archive_mode = off\nrestore_command = 'cp {self._archive}/%f %p'\n"
                f"recovery_target_name = '{point}'\nrecovery_target_action = promote\n"
            )
        Path(self.folder, "recovery.signal").touch()
        start_copy(self._original, self.folder)

    def is_restored(self) -> bool:
        """Whether the restored server takes writes."""
        with psycopg.connect(self.url) as connection:
            return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)


def kill(cluster: Cluster) -> None:
    """Kill all processes of a server with SIGKILL."""
    postmaster, *others = _processes(cluster)
    os.kill(postmaster, signal.SIGKILL)
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    Path(cluster.folder, "postmaster.pid").unlink()


def start_copy(original: Cluster, folder: str) -> None:
    """Start the server whose data folder is a copy of that of ``original``. Its socket is there too."""
    # The original keeps its socket in its data folder, so a copy has a copy of the lock.
    Path(folder, ".s.PGSQL.5432.lock").unlink(missing_ok=True)
    options = f'-h "" -k {folder} -c wal_retrieve_retry_interval=200ms'
    original.run("pg_ctl", "-w", "-D", folder, "start", "-o", options, "-l", str(Path(folder, "log")))


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
