"""Whether the queue's database answers and has the tables of this release."""

from __future__ import annotations

import logging
import pkgutil
from importlib import resources

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.db.migrations.recorder import MigrationRecorder

from ..models.check_migrated import check_tables

logger = logging.getLogger("horsies_django.monitoring")

_APP = "horsies_django"


def unready_reason(database: str) -> str | None:
    """Return in one line why the queue can't be used, None if it can. The details of an error are only logged."""
    try:
        check_tables(database)
        missing = _unapplied(database)
    except ImproperlyConfigured as error:
        return str(error).partition("\n")[0]
    except Error as error:
        logger.warning("database not ready alias=%s error=%s", database, error)
        connections[database].close_if_unusable_or_obsolete()
        return f"Database {database!r} does not answer: {type(error).__name__}."
    if missing:
        return f"Database {database!r} lacks the migration {missing[0]} of {_APP}: run `manage.py migrate`."
    return None


def _unapplied(database: str) -> list[str]:
    """Return the names of this release's migrations that the database lacks, the first one first."""
    if _APP in settings.MIGRATION_MODULES:
        return []  # the project's own, with names of its own
    applied = MigrationRecorder(connections[database]).migration_qs.filter(app=_APP)
    folder = resources.files(_APP) / "migrations"
    ours = {module.name for module in pkgutil.iter_modules([str(folder)])}
    return sorted(ours - set(applied.values_list("name", flat=True)))
