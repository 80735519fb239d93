"""A connection of our own for a loop: its set-up, and which database it is to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from . import postgres

V = TypeVar("V", bound=Callable[..., Any])

#: Seconds to wait for SQLite's single writer before that counts as an error.
SQLITE_TIMEOUT: Final = 30

#: The size of a pool of psycopg that sets none.
_PSYCOPG_POOL_SIZE: Final = 4


@contextmanager
def own_connection(alias: str, name: str, *, is_busy: bool = False, waits: bool = False) -> Iterator[None]:
    """Give this thread a connection to ``alias`` that is set up for a queue, and close it in the end.

    On SQLite every transaction begins as a writer: one that reads first and then writes fails if another connection has
    written in between. On PostgreSQL the connection has the worker's name, takes no place in a pool, is READ COMMITTED,
    and times out when the server is gone and, unless it ``waits``, when a lock is held for long; with ``is_busy``,
    statements are prepared. In an open transaction, or for a database in memory, the thread keeps the connection that
    it has.
    """
    original = connections[alias]
    if original.in_atomic_block or is_in_memory(alias):
        yield
        return
    own = original.copy()
    own.queries_log = deque(maxlen=0)  # with DEBUG it would keep 9,000 statements, each with the results of a tick
    options = own.settings_dict.setdefault("OPTIONS", {})
    if own.vendor == "sqlite":
        options["transaction_mode"] = "IMMEDIATE"
        options["timeout"] = max(options.get("timeout", 0), SQLITE_TIMEOUT)
    elif own.vendor == "postgresql":
        own.settings_dict["OPTIONS"] = options = postgres.own_options(options, name)
        if is_busy:
            options["server_side_binding"] = False  # otherwise all were prepared, and partial indexes would not be used
    # This setting means a pooler, which may hand what this session has prepared or set to another session.
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
    """Return what identifies the database in these settings of a connection, without any password."""
    options = settings.get("OPTIONS") or {}
    named = {key: settings.get(key) or "" for key in ("ENGINE", "NAME", "HOST", "PORT")}
    # PostgreSQL takes these from either place.
    named |= {f"OPTIONS {key}": options.get(key) or "" for key in ("service", "dbname", "host", "port")}
    return {key: str(value) for key, value in named.items() if value}


def check_identity(alias: str, expected: Mapping[str, str]) -> None:
    """Raise ImproperlyConfigured if ``alias`` is, in this process, another database than the ``expected`` one."""
    identity = identity_of(connections.settings[alias])
    if identity != expected:
        raise ImproperlyConfigured(
            f"This runner would work on another database than the process that started it: {alias!r} is {identity} "
            f"here and {dict(expected)} there, as in a test. Nothing was run."
        )


def pool_size(alias: str) -> int | None:
    """Return the most connections that Django's pool for ``alias`` has in a process; None without a pool."""
    pool = connections.settings[alias].get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    options = {} if pool is True else pool
    return options.get("max_size") or options.get("min_size") or _PSYCOPG_POOL_SIZE


def is_in_memory(alias: str) -> bool:
    """Whether ``alias`` is an SQLite database in memory, which other processes don't see and other threads lock."""
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())  # type: ignore[attr-defined]  # only SQLite's wrapper has it


def is_visible_only_here(alias: str) -> bool:
    """Whether only this thread's connection sees the tasks: it is in a transaction, in memory, or of other settings."""
    connection = connections[alias]
    has_other_settings = identity_of(connection.settings_dict) != identity_of(connections.settings[alias])
    return connection.in_atomic_block or is_in_memory(alias) or has_other_settings


def commits_by_itself(view: V) -> V:
    """Leave a view out of the transactions of ATOMIC_REQUESTS, on each database."""
    for alias in connections:
        transaction.non_atomic_requests(alias)(view)
    return view


@contextmanager
def without_waiting(alias: str) -> Iterator[None]:
    """On SQLite, let a statement that would wait for the writer fail at once: see ``errors.is_blocked``."""
    if connections[alias].vendor != "sqlite":
        yield
        return
    with connections[alias].cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        (milliseconds,) = cursor.fetchone()
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {milliseconds:d}")
