"""Real workers on the test database, and ways to wait for them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.core.management.color import no_style
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import SimpleTestCase, TransactionTestCase

from horsies_django.core.platform import ignored_signals
from tests.preloaded import Parent

ROOT = Path(__file__).resolve().parent.parent

#: Tables that a transactional test leaves as they are.
KEPT = {"auth_permission", "django_content_type"}

#: The largest table that is emptied with DELETE on PostgreSQL.
SMALL_TABLE_BYTES = 160 * 1024


#: Whether commands fork from a process that has imported the project: only Linux lets a process adopt orphans.
FORKS = sys.platform == "linux"

#: Prefixes of variables that a test may set for a forked command: no import depends on them.
READ_LATER = (
    *("CHAOS_LEDGER", "COUNT_STATEMENTS", "DATABASE_URL", "HORSIES_", "OUTBOX"),
    *("TEST_HEARTBEAT", "TEST_CHECK", "TEST_IMPORT", "TEST_QUEUES", "TEST_STALE"),
)

parent = Parent()


def pytest_configure() -> None:
    """Let Ctrl-C and SIGHUP reach the processes of tests: a background job, and nohup, pass on that they ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ignored_signals():
        signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among modules and test items: it takes a quarter of the time, and all of them stay anyway.

    Each of six processes collects all tests. Later collections are rarer than Python's default.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(10_000)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark nightly tests as slow, slow ones on SQLite as nightly, and those that use no database as the same on any."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "nightly" in marks:
            item.add_marker(pytest.mark.slow)
        elif "slow" in marks and "sqlite" not in marks and connection.vendor == "sqlite":
            item.add_marker(pytest.mark.nightly)
        if not _uses_database(item):
            item.add_marker(pytest.mark.once)


def _uses_database(item: Any) -> bool:
    is_marked = item.get_closest_marker("django_db") or {"db", "transactional_db"} & set(item.fixturenames)
    return bool(is_marked) or issubclass(getattr(item, "cls", None) or object, SimpleTestCase)


@pytest.fixture(scope="session", autouse=True)
def _end_parent() -> Iterator[None]:
    yield
    parent.close()


def wait_until(condition: Callable[[], Any], limit: float = 60.0, what: str | Callable[[], str] = "") -> Any:
    """Return the condition's first true value; fail with ``what`` when ``limit`` seconds have passed."""
    deadline = time.monotonic() + limit
    while True:
        is_last = time.monotonic() > deadline  # before the condition, which is checked once more after a stall
        if value := condition():
            return value
        if is_last:
            pytest.fail(f"not within {limit} s: {what() if callable(what) else what or condition}")
        time.sleep(0.02)


def database_url() -> str:
    """Return the URL of the database that this test runs on."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    user = settings["USER"] + (f":{settings['PASSWORD']}" if settings["PASSWORD"] else "")
    host = settings["HOST"] + (f":{settings['PORT']}" if settings["PORT"] else "")
    query = f"?host={settings['OPTIONS']['host']}" if settings["OPTIONS"].get("host") else ""
    return f"postgresql://{user}@{host}/{settings['NAME']}{query}"


def is_forked(environment: Mapping[str, str]) -> bool:
    """Return whether a command with these variables forks from the process that has imported the project."""
    return FORKS and all(name.startswith(READ_LATER) for name in environment)


class Process:
    """A ``manage.py`` command in its own process, with its output.

    It forks from a process that has imported the project, unless imports depend on a variable in ``environment``.
    """

    def __init__(self, *arguments: str, **environment: str) -> None:
        complete = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONWARNINGS": "default",
            **environment,
        }
        if is_forked(environment):
            self.process: subprocess.Popen[str] = parent.start(arguments, complete)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=ROOT,
                env=complete,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:  # extend() would add them only at the end
                self._lines.append(line)

    @property
    def output(self) -> str:
        """Return the output so far."""
        return "".join(self._lines)

    def wait(self, limit: float = 60.0) -> int:
        """Wait for the end and return the exit status."""
        status = self.process.wait(limit)
        self._reader.join(5)
        return status

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the command's own process."""
        self.process.send_signal(number)

    def stop(self) -> str:
        """Stop the command and its runners, and return the output."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.wait(10)
        self._reader.join(5)
        return self.output


@pytest.fixture(scope="session", autouse=True)
def _fast_flush() -> Iterator[None]:
    """Empty the tables after each transactional test in a tenth of the time that Django's ``flush`` takes.

    ``flush`` also recreates all content types and permissions. And on a small table of PostgreSQL TRUNCATE takes about
    25 times as long as DELETE; a large one is truncated, since its dead rows would change the plans of later tests.
    """

    def empty_tables(test: Any) -> None:
        for alias in test._databases_names(include_mirrors=False):
            connection, options = connections[alias], {"reset_sequences": False, "allow_cascade": False}
            tables = tables_of(connection.settings_dict["NAME"], alias)
            statements = connection.ops.sql_flush(no_style(), tables, **options)
            if connection.vendor == "postgresql" and not _has_large(connection, tables):
                # Foreign keys are checked at the commit.
                statements = ["; ".join(f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables)]
            connection.ops.execute_sql_flush(statements)

    @cache
    def tables_of(name: str, alias: str) -> list[str]:
        return sorted(
            set(connections[alias].introspection.django_table_names(only_existing=True, include_views=False)) - KEPT
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_tables)
        yield


def _has_large(connection: BaseDatabaseWrapper, tables: list[str]) -> bool:
    """Whether one of these tables is larger than a few pages."""
    with connection.cursor() as cursor:
        sizes = "SELECT FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r' AND pg_relation_size(oid) > %s"
        cursor.execute(sizes, [tables, SMALL_TABLE_BYTES])
        return cursor.fetchone() is not None


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    """Unregister the workflows that a test defines, but not those of modules that it imports."""
    from horsies_django.workflows.definition_registry import definition_registry

    tables: tuple[dict[str, Any], ...] = (definition_registry.definitions, definition_registry.builders)
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        new = {path: found for path, found in table.items() if path not in known and _is_of_module(found)}
        table.clear()
        table.update(known | new)


def _is_of_module(found: Any) -> bool:
    """Whether a definition, or a builder, is at the top of its module."""
    target = getattr(found, "func", found)
    return getattr(sys.modules.get(target.__module__), target.__qualname__, None) is target


@pytest.fixture
def manage(transactional_db: None) -> Iterator[Callable[..., Process]]:
    """Start ``manage.py`` commands on the test database; they are stopped when the test ends."""
    started: list[Process] = []

    def start(*arguments: str, **environment: str) -> Process:
        started.append(Process(*arguments, **environment))
        return started[-1]

    yield start
    for process in started:
        print(process.stop())  # pytest shows it if the test has failed


@pytest.fixture
def worker(manage: Callable[..., Process]) -> Callable[..., Process]:
    """Start a worker that runs until the test ends, and return once it is registered."""
    from horsies_django.models import Worker

    def start(*flags: str, runners: int = 1, **environment: str) -> Process:
        before = list(Worker.objects.values_list("pk", flat=True))  # some of them may stop meanwhile
        # The process that it forks from has run the system checks, which take a third of a start.
        checks = ["--skip-checks"] if is_forked(environment) else []
        process = manage("horsies_worker", *checks, *flags, **environment)
        new = Worker.objects.exclude(pk__in=before)
        wait_until(lambda: new.count() >= runners or process.process.poll() is not None, 60, "the worker is registered")
        assert process.process.poll() is None, process.stop()
        return process

    return start


@pytest.fixture
def drain(transactional_db: None) -> Callable[..., None]:
    """Run what is due in this process, as ``horsies_worker --drain`` does; ``no_reaper=False`` if that matters."""
    from django.core.management import call_command

    def run(**options: Any) -> None:
        # A callback of the garbage collector, such as that of Hypothesis, loses an exception that is to stop a body.
        callbacks, gc.callbacks[:] = gc.callbacks[:], []
        try:
            call_command("horsies_worker", **{"drain": True, "verbosity": 0, "no_reaper": True, **options})
        finally:
            gc.callbacks[:] = callbacks

    return run


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that bodies wait for."""
    return tmp_path / "gate"
