"""Telling a database that refuses something from one that is not to be had."""

from __future__ import annotations

from django.db import DataError, Error, IntegrityError, OperationalError


def is_refusal(error: Error) -> bool:
    """Whether the database has refused what it was given, and would again; otherwise it is not to be had for now.

    PostgreSQL counts a value that is too large among the operational errors, by a code of its own.
    """
    if isinstance(error, OperationalError):
        return str(getattr(error.__cause__, "sqlstate", "")).startswith("54")
    return isinstance(error, DataError | IntegrityError)


def words(error: Error) -> str:
    """Return what a database says of an error without its details, in which PostgreSQL quotes the values of the row."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return str(getattr(diagnosis, "message_primary", None) or error)
