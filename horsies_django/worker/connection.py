"""The pump's own database connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ..db import postgres

#: Seconds that a pump waits for SQLite's single writer before it counts as an error.
SQLITE_TIMEOUT: Final = 30


@contextmanager
def own_connection(alias: str, name: str, *, is_busy: bool = False, waits: bool = False) -> Iterator[None]:
    """Give this thread a connection to ``alias`` that is set up for a queue, and close it in the end.

    On SQLite every transaction begins as the writer that it is going to be: one that reads first and writes then fails
    as soon as somebody wrote in between. On PostgreSQL it bears the worker's name, takes no place in a pool, is READ
    COMMITTED, and waits neither for a server that is gone nor, unless it ``waits``, for a lock that is held for long;
    for who is busy on it, statements are prepared. A transaction that is already open, or a database in memory, is this
    thread's alone and stays as it is.
    """
    original = connections[alias]
    if original.in_atomic_block or in_memory(alias):
        yield
        return
    own = original.copy()
    options = own.settings_dict.setdefault("OPTIONS", {})
    if own.vendor == "sqlite":
        options["transaction_mode"] = "IMMEDIATE"
        options["timeout"] = max(options.get("timeout", 0), SQLITE_TIMEOUT)
    elif own.vendor == "postgresql":
        own.settings_dict["OPTIONS"] = options = postgres.own_options(options, name)
        if is_busy:
            options["server_side_binding"] = False  # else all would be prepared, and no partial index be found
    # Who says so has a pooler between, where what a session has prepared or set is another's in the next transaction.
    sets_up = own.vendor == "postgresql" and not own.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")

    def set_up(connection: BaseDatabaseWrapper, **_: object) -> None:
        if connection is own:
            postgres.set_up_session(connection, is_busy=is_busy, waits=waits)

    if sets_up:
        connection_created.connect(set_up)
    connections[alias] = own
    try:
        yield
    finally:
        connection_created.disconnect(set_up)
        own.close()
        connections[alias] = original


def identity_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return which database these settings of a connection mean, without any password."""
    options = settings.get("OPTIONS") or {}
    named = {key: settings.get(key) or "" for key in ("ENGINE", "NAME", "HOST", "PORT")}
    # PostgreSQL takes these from either place.
    named |= {f"OPTIONS {key}": options.get(key) or "" for key in ("service", "dbname", "host", "port")}
    return {key: str(value) for key, value in named.items() if value}


def check_identity(alias: str, expected: Mapping[str, str]) -> None:
    """Raise ImproperlyConfigured if ``alias`` is, for this process, another database than the ``expected`` one."""
    found = identity_of(connections.settings[alias])
    if found != expected:
        raise ImproperlyConfigured(
            f"This runner would work on another database than the process that started it: {alias!r} is {found} here "
            f"and {dict(expected)} there, as in a test. Nothing was run."
        )


def in_memory(alias: str) -> bool:
    """Whether ``alias`` is an SQLite database in memory, which other processes don't see and other threads lock."""
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())  # type: ignore[attr-defined]  # SQLite's own


def is_callers_alone(alias: str) -> bool:
    """Whether only this thread's connection sees the tasks: others would see no transaction of it, or elsewhere."""
    connection = connections[alias]
    is_elsewhere = identity_of(connection.settings_dict) != identity_of(connections.settings[alias])
    return connection.in_atomic_block or in_memory(alias) or is_elsewhere
