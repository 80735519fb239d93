"""Tells errors of rows from errors of an unavailable database, and keeps rows that fail from stopping others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeGuard, TypeVar

from django.db import DataError, Error, IntegrityError, InterfaceError, OperationalError

logger = logging.getLogger("horsies_django")

T = TypeVar("T")
R = TypeVar("R")

#: PostgreSQL's code for a write on a read-only server: a standby, or a primary that becomes one.
READ_ONLY: Final = "25006"

#: The code for a lock that another transaction held too long.
LOCK_NOT_AVAILABLE: Final = "55P03"

#: The code for a missing privilege.
INSUFFICIENT_PRIVILEGE: Final = "42501"

#: Codes and classes of codes for errors that come of no row: no connection, no resources, a shutdown, an unknown table.
_OF_ALL_ROWS: Final = (READ_ONLY, LOCK_NOT_AVAILABLE, "08", "42", "53", "57P", "58")

#: The class of errors that functions raise, such as a trigger that refuses a row.
_RAISED: Final = "P0"

#: The errors of Django and the driver for values that they can't read.
_UNREADABLE: Final = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError)


def sqlstate(error: BaseException) -> str:
    """Return PostgreSQL's code of an error; an empty text for other databases, or without an answer."""
    return str(getattr(error.__cause__, "sqlstate", None) or "")


def is_permanent_error(error: Error) -> bool:
    """Whether the database rejected the statement and would again. If not, the database is unavailable for now.

    An error that a trigger raises is one, too: it refuses the row, whatever is tried again.
    PostgreSQL counts a value that is too large among the operational errors, by a code of its own.
    """
    if isinstance(error, OperationalError):
        return sqlstate(error).startswith("54")
    return isinstance(error, DataError | IntegrityError) or sqlstate(error).startswith(_RAISED)


def is_outage(error: BaseException) -> bool:
    """Whether a retry may succeed: the database is down or read-only, or another transaction was in the way.

    Lost connections, shutdowns, lock timeouts, deadlocks and serialization failures are operational errors; the
    error of a read-only server is not.
    """
    if isinstance(error, OperationalError | InterfaceError):
        return not is_permanent_error(error)
    return isinstance(error, Error) and sqlstate(error) == READ_ONLY


def is_blocked(error: BaseException) -> bool:
    """Whether another transaction held a lock for too long; on SQLite, the only lock that there is."""
    name = getattr(error.__cause__, "sqlite_errorname", "")
    return sqlstate(error) == LOCK_NOT_AVAILABLE or name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def is_notify_queue_full(error: BaseException) -> bool:
    """Whether a commit failed because the server's queue of notifications is full. The code is that of any limit."""
    diagnosis = getattr(error.__cause__ or error, "diag", None)  # Django's error, or psycopg's own
    return getattr(diagnosis, "source_function", None) == "PreCommit_Notify"


def lacks_privilege(error: BaseException) -> TypeGuard[Error]:
    """Whether the role lacks a privilege. Retries can't succeed until an operator grants it."""
    return isinstance(error, Error) and sqlstate(error) == INSUFFICIENT_PRIVILEGE


def is_row_error(error: BaseException) -> bool:
    """Whether the values of a row may have caused the error, so that other rows may succeed."""
    return is_permanent_error(error) if isinstance(error, Error) else isinstance(error, _UNREADABLE)


def primary_message(error: Exception) -> str:
    """Return the message of an error without its details, in which PostgreSQL quotes the row's values."""
    diagnosis = getattr(error.__cause__, "diag", None)
    return str(getattr(diagnosis, "message_primary", None) or (error if isinstance(error, Error) else repr(error)))


def concerns_all_rows(error: BaseException) -> bool:
    """Whether no row causes the error: the database is away, busy or read-only, or refuses the statement as such.

    A statement timeout, a deadlock or a damaged page may come of one row.
    """
    if code := sqlstate(error):
        return code.startswith(_OF_ALL_ROWS)
    return isinstance(error, OperationalError | InterfaceError)


def is_temporary(error: BaseException) -> bool:
    """Whether the database refuses the statement for now, whatever the row, or because another one was in the way."""
    return isinstance(error, Error) and not is_permanent_error(error)


def row_by_row(
    rows: Sequence[T],
    act: Callable[[Sequence[T]], R],
    set_aside: Callable[[T, Exception], R],
    is_raised: Callable[[BaseException], bool] = is_temporary,
) -> list[R]:
    """Apply ``act`` to rows, or to their keys; if that fails, to each half, down to one row. Return what it returns.

    ``set_aside`` handles the rows that fail alone, so that one row never stops the others. Each call of ``act`` has to
    be a transaction or a savepoint. Raises the errors for which ``is_raised`` is true.
    """
    try:
        return [act(rows)] if rows else []
    except Exception as error:
        if is_raised(error):
            raise
        if len(rows) == 1:
            return [set_aside(rows[0], error)]
        logger.warning("batch failed rows=%d: retried in halves error=%s", len(rows), primary_message(error))
    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return [result for half in halves for result in row_by_row(half, act, set_aside, is_raised)]
