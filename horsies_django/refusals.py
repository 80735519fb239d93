"""Telling a database that refuses something from one that is not to be had."""

from __future__ import annotations

from django.db import DataError, Error, IntegrityError, InterfaceError, OperationalError

#: What Django and the driver raise for a value that they can't make anything of.
_UNREADABLE = (ValueError, TypeError, AttributeError, ArithmeticError)


def is_refusal(error: Error) -> bool:
    """Whether the database has refused what it was given, and would again; otherwise it is not to be had for now.

    PostgreSQL counts a value that is too large among the operational errors, by a code of its own.
    """
    if isinstance(error, OperationalError):
        return str(getattr(error.__cause__, "sqlstate", "")).startswith("54")
    return isinstance(error, DataError | IntegrityError)


def is_outage(error: BaseException) -> bool:
    """Whether the connection is to blame, or somebody else's transaction: the same may go well another time."""
    return isinstance(error, OperationalError | InterfaceError) and not is_refusal(error)


def is_of_the_row(error: BaseException) -> bool:
    """Whether an error may be the fault of a row that was read or written: another row may go well."""
    return is_refusal(error) if isinstance(error, Error) else isinstance(error, _UNREADABLE)


def is_out_of_range(error: BaseException) -> bool:
    """Whether a row holds what can't be read, or what its bounds don't allow; not one that a trigger refuses."""
    if isinstance(error, IntegrityError):
        return "_in_range" in str(error)
    return is_of_the_row(error)
