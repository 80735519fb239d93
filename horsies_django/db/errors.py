"""Telling a database that refuses something from one that is not to be had."""

from __future__ import annotations

from typing import Final, TypeGuard

from django.db import DataError, Error, IntegrityError, InterfaceError, OperationalError

#: PostgreSQL's code for a write where none is allowed: on a standby, or on a primary that is becoming one.
READ_ONLY: Final = "25006"

#: Its code for a lock that another transaction had for too long.
LOCK_NOT_AVAILABLE: Final = "55P03"

#: Its code for a statement that the role may not run.
INSUFFICIENT_PRIVILEGE: Final = "42501"

#: What Django and the driver raise for a value that they can't read.
_UNREADABLE: Final = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError)


def sqlstate(error: BaseException) -> str:
    """Return the code that PostgreSQL gave an error; an empty one of other databases, and where there was no answer."""
    return str(getattr(error.__cause__, "sqlstate", None) or "")


def is_permanent_error(error: Error) -> bool:
    """Whether the database has refused what it was given, and would again; otherwise it is not to be had for now.

    PostgreSQL counts a value that is too large among the operational errors, by a code of its own.
    """
    if isinstance(error, OperationalError):
        return sqlstate(error).startswith("54")
    return isinstance(error, DataError | IntegrityError)


def is_outage(error: BaseException) -> bool:
    """Whether the same may succeed later: the database is away or read-only, or another transaction was in the way.

    Lost connections, shutdowns, lock timeouts, deadlocks and serialization failures are operational errors; what a
    read-only server says is not.
    """
    if isinstance(error, OperationalError | InterfaceError):
        return not is_permanent_error(error)
    return isinstance(error, Error) and sqlstate(error) == READ_ONLY


def lacks_privilege(error: BaseException) -> TypeGuard[Error]:
    """Whether the role may not do what it tried: no wait helps, until a person grants it."""
    return isinstance(error, Error) and sqlstate(error) == INSUFFICIENT_PRIVILEGE


def is_row_error(error: BaseException) -> bool:
    """Whether an error may be the fault of a row that was read or written: another row may go well."""
    return is_permanent_error(error) if isinstance(error, Error) else isinstance(error, _UNREADABLE)


def primary_message(error: Error) -> str:
    """Return what a database says of an error without its details, in which PostgreSQL quotes the values of the row."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return str(getattr(diagnosis, "message_primary", None) or error)


def is_out_of_range(error: BaseException) -> bool:
    """Whether a row holds what can't be read, or what its bounds don't allow; not one that a trigger refuses."""
    if isinstance(error, IntegrityError):
        return "_in_range" in str(error)
    return is_row_error(error)
