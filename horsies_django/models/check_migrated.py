"""Checks that a database has the tables of the queue, and that the role may use them."""

from __future__ import annotations

from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, OperationalError, connections

from ..db.check_database import check_database, grants_problem, hidden_problem
from ..db.errors import lacks_privilege, primary_message
from .task import Task


class MissingPrivilege(ImproperlyConfigured):
    """The role lacks a privilege that it needs. The message is one line that names what to grant."""


def check_tables(database: str, *, needs_grants: bool = False) -> None:
    """Raise ImproperlyConfigured if the tables, or with ``needs_grants`` the grants of a worker, are missing.

    A database that can't be reached passes; the caller fails later.
    """
    check_database(database)
    with suppress(OperationalError):
        if Task._meta.db_table not in connections[database].introspection.table_names():
            raise ImproperlyConfigured(
                hidden_problem(database, Task._meta.db_table)
                or f"The tables of horsies_django are not in database {database!r}: run `manage.py migrate` first."
            )
        if needs_grants and (problem := grants_problem(database, _tables())):
            raise ImproperlyConfigured(problem)


def raise_if_forbidden(database: str, error: BaseException) -> None:
    """Raise MissingPrivilege if ``error`` says that the role of ``database`` lacks a privilege that the queue needs."""
    if lacks_privilege(error):
        raise MissingPrivilege(_missing(database) or f"Database {database!r}: {primary_message(error)}.") from error


def raise_if_grants_are_missing(database: str, error: BaseException) -> None:
    """Raise MissingPrivilege if ``error`` is about a privilege, and one on the queue's tables is missing.

    For errors from a project's own code, which may be about a table of the project.
    """
    if lacks_privilege(error) and (problem := _missing(database)):
        raise MissingPrivilege(problem) from error


def _missing(database: str) -> str | None:
    if connections[database].in_atomic_block:
        return None  # the error has aborted the transaction, so no query can run
    try:
        check_tables(database, needs_grants=True)
    except ImproperlyConfigured as error:
        return str(error)
    except Error:
        return None
    return None


def _tables() -> list[str]:
    """Return the tables of all models of this app."""
    config = Task._meta.app_config
    assert config is not None
    return sorted({model._meta.db_table for model in config.get_models()})
