"""What tests ask the database: its vendor, its commits, waits for locks, and which threads query a table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

T = TypeVar("T")


def is_postgres() -> bool:
    return connection.vendor == "postgresql"


def count_commits() -> int:
    """Return how many transactions this PostgreSQL database has committed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        (count,) = cursor.fetchone()
        return int(count)


def on_another_connection(action: Callable[[], T]) -> T:
    """Return what ``action`` returns on a connection of its own, outside the caller's transaction."""

    def run() -> T:
        try:
            return action()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def another_connection_waits_for_our_lock() -> bool:
    """Whether another connection waits for a row or table that this one has locked, on PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])


@contextmanager
def querying_threads(table: str) -> Iterator[list[str]]:
    """Yield the names of the threads that query a table, one for each query, on any connection."""
    names: list[str] = []

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("SELECT") and f'FROM "{table}"' in sql:
            names.append(threading.current_thread().name)
        return execute(sql, *rest)

    def watch(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            connection.execute_wrappers.append(count)

    connection_created.connect(watch)
    with connection.execute_wrapper(count):
        yield names
    connection_created.disconnect(watch)


@contextmanager
def separate_database(suffix: str, *, is_kept: bool = False) -> Iterator[None]:
    """Connect to a separate database, beside that of the other tests."""
    original = connection.settings_dict["NAME"]
    separate = f"{original}_{suffix}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [separate])
        if not cursor.fetchone():
            cursor.execute(f'CREATE DATABASE "{separate}"')
    _connect_to(separate)
    try:
        yield
    finally:
        _connect_to(original)
        if not is_kept:
            with connection.cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{separate}"')


def _connect_to(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name
