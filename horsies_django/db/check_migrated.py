"""Whether a database can hold the queue, has its tables, and lets this role use them."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, OperationalError, connections

from .errors import lacks_privilege, primary_message

#: The databases that the queue runs on, by Django's names of their vendors.
SUPPORTED: Final = ("postgresql", "sqlite")

#: What workers, reapers and schedulers do to the tables.
_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

_MISSING: Final = """
SELECT current_user, one.name, one.privilege
FROM (SELECT name, privilege FROM unnest(%s::text[]) AS name, unnest(%s::text[]) AS privilege) AS one
WHERE NOT has_table_privilege(to_regclass(quote_ident(one.name)), one.privilege)
ORDER BY one.name
"""

_HIDDEN: Final = """
SELECT current_user, nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = %s AND relkind IN ('r', 'p') AND NOT has_schema_privilege(pg_namespace.oid, 'USAGE')
"""


class MissingPrivilege(ImproperlyConfigured):
    """The role has lost a privilege that it needs: what has to be granted, in one line."""


def database_problem(alias: str) -> tuple[str, str] | None:
    """Return a sentence and a hint if no queue can be in the database of ``alias``; does not connect to it."""
    where = f"DATABASES['{alias}']"
    try:
        connection = connections[alias]
    except ImproperlyConfigured as error:  # its driver is not there
        return (_psycopg_problem(where) if "psycopg" in str(error) else None) or (f"{where}: {error}.", "")
    if connection.vendor not in SUPPORTED:
        problem = f"{where} is {connection.display_name}, on which the queue does not run; allowed: PostgreSQL, SQLite."
        return problem, "Add a PostgreSQL or SQLite database, and name its alias in OPTIONS['database']."
    # Where psycopg 3 can't be loaded, Django goes back to psycopg2 without a word.
    return _psycopg_problem(where) if connection.vendor == "postgresql" else None


def _psycopg_problem(where: str) -> tuple[str, str] | None:
    try:
        import psycopg  # noqa: F401  # to see whether it can be
    except ImportError as error:
        reason = str(error).partition("\n")[0]  # the rest is what it tried
        problem = f"{where} needs psycopg 3, which can't be loaded: {reason}."
        return problem, "Run `pip install 'horsies-django[binary]'`, or install libpq (libpq5 on Debian)."
    return None


def check_database(alias: str) -> None:
    """Raise ImproperlyConfigured, in one line, if no queue can be in the database of ``alias``."""
    if problem := database_problem(alias):
        raise ImproperlyConfigured(" ".join(problem).strip())


def check_tables(database: str, *, is_worked_on: bool = False) -> None:
    """Raise ImproperlyConfigured if the tables are not there or, if they are worked on, without the grants for that.

    A database that can't be asked is left for later.
    """
    from ..models import Task

    check_database(database)
    with suppress(OperationalError):
        if Task._meta.db_table not in connections[database].introspection.table_names():
            raise ImproperlyConfigured(
                _hidden_problem(database, Task._meta.db_table)
                or f"The tables of horsies_django are not in database {database!r}: run `manage.py migrate` first."
            )
        if is_worked_on and (problem := _grants_problem(database)):
            raise ImproperlyConfigured(problem)


def raise_if_forbidden(database: str, error: BaseException) -> None:
    """Raise MissingPrivilege if ``error`` says that the role of ``database`` may not do what its queue needs."""
    if lacks_privilege(error):
        raise MissingPrivilege(_missing(database) or f"Database {database!r}: {primary_message(error)}.") from error


def raise_if_grants_are_missing(database: str, error: BaseException) -> None:
    """Raise MissingPrivilege if ``error`` may be about a privilege on the queue's tables, and one is missing.

    For errors out of a project's own code, which may have met a table of its own.
    """
    if lacks_privilege(error) and (problem := _missing(database)):
        raise MissingPrivilege(problem) from error


def _missing(database: str) -> str | None:
    if connections[database].in_atomic_block:
        return None  # an error has ended its transaction, and nothing can be asked in it
    try:
        check_tables(database, is_worked_on=True)
    except ImproperlyConfigured as error:
        return str(error)
    except Error:
        return None
    return None


def _hidden_problem(database: str, table: str) -> str | None:
    """A sentence if the tables are in a schema that this role must not look into."""
    if connections[database].vendor != "postgresql":
        return None
    with connections[database].cursor() as cursor:
        cursor.execute(_HIDDEN, [table])
        if (found := cursor.fetchone()) is None:
            return None
    return (
        f"Role {found[0]!r} of database {database!r} needs USAGE on schema {found[1]!r}, where the tables are: "
        "see the page on security."
    )


def _grants_problem(database: str) -> str | None:
    """A sentence if this role lacks a privilege that a worker needs."""
    if connections[database].vendor != "postgresql":
        return None
    names = sorted({model._meta.db_table for model in apps.get_app_config("horsies_django").get_models()})
    lacking: defaultdict[str, list[str]] = defaultdict(list)
    role = ""
    with connections[database].cursor() as cursor:
        cursor.execute(_MISSING, [names, list(_PRIVILEGES)])
        for role, name, privilege in cursor.fetchall():  # noqa: B007  # the same in all of them
            lacking[privilege].append(name)
    if not lacking:
        return None
    needs = "; ".join(
        f"{privilege} on {', '.join(lacking[privilege])}" for privilege in _PRIVILEGES if lacking[privilege]
    )
    return f"Role {role!r} of database {database!r} needs {needs}: see the page on security."
