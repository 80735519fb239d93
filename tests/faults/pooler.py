"""PgBouncer in front of a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.chaos.cluster import Cluster
from tests.conftest import wait_until

_CONFIGURATION = """\
[databases]
postgres = host={server} user=postgres

[pgbouncer]
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
listen_addr =
listen_port = 5432
unix_socket_dir = {folder}
{more}
"""


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def prepares_statements() -> bool:
    """Whether PgBouncer is 1.21 or later, which prepares statements in transaction mode."""
    if not (program := find_pgbouncer()):
        return False
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, found.split()[1].split(".")[:2])) >= (1, 21)


@contextmanager
def pgbouncer(own: Cluster, mode: str, size: int, more: str = "") -> Iterator[str]:
    """Yield the URL of the database behind a PgBouncer with ``size`` connections to the server.

    Without PgBouncer the test is skipped, or fails if REQUIRE_PGBOUNCER is set, as ``.ci/run`` does. ``more`` is added
    to its configuration.
    """
    if not (program := find_pgbouncer()):
        message = "PgBouncer is missing: apt-get install pgbouncer"
        pytest.fail(message) if os.environ.get("REQUIRE_PGBOUNCER") else pytest.skip(message)
    with tempfile.TemporaryDirectory(prefix="horsies-pooler-") as folder:
        path = Path(folder, "pgbouncer.ini")
        path.write_text(_CONFIGURATION.format(server=own.socket_folder, mode=mode, size=size, folder=folder, more=more))
        if own.user:  # PgBouncer refuses to run as root
            shutil.chown(folder, own.user)
            path.chmod(0o644)
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen([program, str(path)], user=own.user, stdout=log, stderr=log)
        url = f"postgresql://postgres@/postgres?host={folder}"

        def answers() -> bool:
            try:
                psycopg.connect(url).close()
            except psycopg.OperationalError:
                assert process.poll() is None, Path(folder, "log").read_text()
                return False
            return True

        try:
            wait_until(answers, limit=40, what="PgBouncer answers")
            yield url
        finally:
            process.terminate()
            process.wait(20)
