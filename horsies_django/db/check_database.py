"""Whether a database can hold the queue, and what its role may do there."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

#: The supported databases, by Django's vendor names.
SUPPORTED: Final = ("postgresql", "sqlite")

#: The first version with RETURNING.
LOWEST_SQLITE: Final = (3, 35)

#: The privileges that workers, reapers and schedulers need on the tables.
_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

_MISSING: Final = """
SELECT current_user, one.name, one.privilege
FROM (SELECT name, privilege FROM unnest(%s::text[]) AS name, unnest(%s::text[]) AS privilege) AS one
WHERE NOT has_table_privilege(to_regclass(quote_ident(one.name)), one.privilege)
ORDER BY one.name
"""

_CAN_READ: Final = "SELECT has_table_privilege(to_regclass(quote_ident(%s)), 'SELECT')"

_HIDDEN: Final = """
SELECT current_user, nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = %s AND relkind IN ('r', 'p') AND NOT has_schema_privilege(pg_namespace.oid, 'USAGE')
"""


def database_problem(alias: str) -> tuple[str, str] | None:
    """Return a sentence and a hint if no queue can be in the database of ``alias``; does not connect to it."""
    where = f"DATABASES['{alias}']"
    try:
        connection = connections[alias]
    except ImproperlyConfigured as error:  # the driver is missing
        return (_psycopg_problem(where) if "psycopg" in str(error) else None) or (f"{where}: {error}.", "")
    if connection.vendor not in SUPPORTED:
        problem = f"{where} is {connection.display_name}, on which the queue does not run; allowed: PostgreSQL, SQLite."
        return problem, "Add a PostgreSQL or SQLite database, and name its alias in OPTIONS['database']."
    if connection.vendor == "sqlite":
        return sqlite_problem(where, sqlite3.sqlite_version_info)
    # If psycopg 3 can't be loaded, Django silently falls back to psycopg2.
    return _psycopg_problem(where)


def sqlite_problem(where: str, version: tuple[int, ...]) -> tuple[str, str] | None:
    """Return a sentence and a hint if this version of SQLite lacks RETURNING."""
    if version >= LOWEST_SQLITE:
        return None
    shown, lowest = (".".join(map(str, numbers)) for numbers in (version, LOWEST_SQLITE))
    return f"{where} is SQLite {shown}; allowed: {lowest} or later.", "Use a Python that is built with a later SQLite."


def _psycopg_problem(where: str) -> tuple[str, str] | None:
    try:
        import psycopg  # noqa: F401  # tests whether it loads
    except ImportError as error:
        reason = str(error).partition("\n")[0]  # the rest lists the attempts
        problem = f"{where} needs psycopg 3, which can't be loaded: {reason}."
        return problem, "Run `pip install 'horsies-django[binary]'`, or install libpq (libpq5 on Debian)."
    return None


def check_database(alias: str) -> None:
    """Raise ImproperlyConfigured, in one line, if no queue can be in the database of ``alias``."""
    if problem := database_problem(alias):
        raise ImproperlyConfigured(" ".join(problem).strip())


def hidden_problem(database: str, table: str) -> str | None:
    """Return a sentence if this role has no access to the schema of ``table``."""
    if connections[database].vendor != "postgresql":
        return None
    with connections[database].cursor() as cursor:
        cursor.execute(_HIDDEN, [table])
        if (row := cursor.fetchone()) is None:
            return None
    return (
        f"Role {row[0]!r} of database {database!r} needs USAGE on schema {row[1]!r}, where the tables are: "
        "see the page on security."
    )


def can_read(database: str, table: str) -> bool:
    """Return whether the table exists and this role may read it."""
    connection = connections[database]
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            return table in connection.introspection.table_names(cursor)
        cursor.execute(_CAN_READ, [table])
        return bool(cursor.fetchone()[0])  # NULL if there is no such table


def grants_problem(database: str, tables: Collection[str]) -> str | None:
    """Return a sentence if this role lacks a privilege on one of ``tables`` that a worker needs."""
    if connections[database].vendor != "postgresql":
        return None
    with connections[database].cursor() as cursor:
        cursor.execute(_MISSING, [list(tables), list(_PRIVILEGES)])
        rows = cursor.fetchall()
    if not rows:
        return None
    role = rows[0][0]
    lacking: defaultdict[str, list[str]] = defaultdict(list)
    for _, name, privilege in rows:
        lacking[privilege].append(name)
    needs = "; ".join(
        f"{privilege} on {', '.join(lacking[privilege])}" for privilege in _PRIVILEGES if lacking[privilege]
    )
    return f"Role {role!r} of database {database!r} needs {needs}: see the page on security."
