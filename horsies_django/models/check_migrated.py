"""Checks that a database has the tables of this release, and that the role may use them."""

from __future__ import annotations

import pkgutil
from contextlib import suppress
from importlib import resources
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, OperationalError, connections
from django.db.migrations.recorder import MigrationRecorder

from ..db.check_database import can_read, check_database, grants_problem, hidden_problem
from ..db.connection import own_connection
from ..db.errors import lacks_privilege, primary_message
from .task import Task

_APP: Final = "horsies_django"


class MissingPrivilege(ImproperlyConfigured):
    """The role lacks a privilege that it needs. The message is one line that names what to grant."""


def check_tables(database: str, *, needs_grants: bool = False) -> None:
    """Like ``check_schema``, but pass if the database can't be reached: the caller fails later.

    The connection is closed again, and not taken from a pool, because the caller may run for months.
    """
    with suppress(OperationalError), own_connection(database, "check"):
        check_schema(database, needs_grants=needs_grants)


def check_schema(database: str, *, needs_grants: bool = False) -> None:
    """Raise ImproperlyConfigured if tables, migrations, or with ``needs_grants`` the grants of a worker, are missing.

    Migrations of a later release pass.
    """
    check_database(database)
    _check_access(database, needs_grants=needs_grants)
    if missing := _unapplied(database):
        raise ImproperlyConfigured(
            f"Database {database!r} lacks the migration {missing[0]} of {_APP}: run `manage.py migrate` first."
        )


def _check_access(database: str, *, needs_grants: bool) -> None:
    """Raise ImproperlyConfigured if the role can't see the tables, or with ``needs_grants`` not use them."""
    if Task._meta.db_table not in connections[database].introspection.table_names():
        raise ImproperlyConfigured(
            hidden_problem(database, Task._meta.db_table)
            or f"The tables of horsies_django are not in database {database!r}: run `manage.py migrate` first."
        )
    if needs_grants and (problem := grants_problem(database, _tables())):
        raise ImproperlyConfigured(problem)


def _unapplied(database: str) -> list[str]:
    """Return the names of this release's migrations that the database lacks, the first one first.

    Empty if that is unknown: the tables were created without migrations, the project has its own migrations of this
    app, or the role may not read the table that lists them.
    """
    recorder = MigrationRecorder(connections[database])
    if _APP in settings.MIGRATION_MODULES or not can_read(database, recorder.Migration._meta.db_table):
        return []
    applied = set(recorder.migration_qs.filter(app=_APP).values_list("name", flat=True))
    ours = {module.name for module in pkgutil.iter_modules([str(resources.files(_APP) / "migrations")])}
    return sorted(ours - applied)


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
        _check_access(database, needs_grants=True)
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
