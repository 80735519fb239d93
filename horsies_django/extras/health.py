"""Whether the queue's database answers and has the tables of this release."""

from __future__ import annotations

import logging

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections

from ..models.check_migrated import check_schema

logger = logging.getLogger("horsies_django.monitoring")


def unready_reason(database: str) -> str | None:
    """Return in one line why the queue can't be used, None if it can. The details of an error are only logged."""
    try:
        check_schema(database)
    except ImproperlyConfigured as error:
        return str(error).partition("\n")[0]
    except Error as error:
        logger.warning("database not ready alias=%s error=%s", database, error)
        connections[database].close_if_unusable_or_obsolete()
        return f"Database {database!r} does not answer: {type(error).__name__}."
    return None
