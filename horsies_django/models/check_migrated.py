"""Whether a database has the tables of the queue, and lets this role use them."""

from __future__ import annotations

from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, OperationalError, connections

from ..db.check_database import check_database, grants_problem, hidden_problem
from ..db.errors import lacks_privilege, primary_message
from .task import Task


class MissingPrivilege(ImproperlyConfigured):
    """The role has lost a privilege that it needs: what has to be granted, in one line."""


def check_tables(database: str, *, is_worked_on: bool = False) -> None:
    """Raise ImproperlyConfigured if the tables are not there or, if they are worked on, without the grants for that.

    A database that can't be asked is left for later.
    """
    check_database(database)
    with suppress(OperationalError):
        if Task._meta.db_table not in connections[database].introspection.table_names():
            raise ImproperlyConfigured(
                hidden_problem(database, Task._meta.db_table)
                or f"The tables of horsies_django are not in database {database!r}: run `manage.py migrate` first."
            )
        if is_worked_on and (problem := grants_problem(database, _tables())):
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


def _tables() -> list[str]:
    """The tables of all our models."""
    config = Task._meta.app_config
    assert config is not None
    return sorted({model._meta.db_table for model in config.get_models()})
