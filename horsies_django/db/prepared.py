"""Prepares the INSERT of a project's sends on PostgreSQL: the server then parses and plans it once per connection.

A statement can be prepared if the server process that runs it is the one that the connection was made to. Behind a
pooler it is another, and each transaction may run in a different one. The first INSERT on a connection also returns its
process, so finding out costs no statement.

Only sends in autocommit mode use this. There, a statement that the server has lost (by ``DISCARD ALL``, for example)
can be sent again, while inside a transaction its error would end that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from . import postgres
from .errors import sqlstate
from .inserts import Insert, SqlFragment

#: The sends on a connection after which the INSERT is prepared. Preparing takes a round trip, and pays from then on.
SENDS_BEFORE: Final = 3


class MakeInsert(Protocol):
    """Makes an INSERT that returns more columns, or one that is to be prepared."""

    def __call__(self, *returning: SqlFragment, is_prepared: bool = False) -> Insert:
        """Return the INSERT, with these expressions at the end of RETURNING."""


class _Session:
    """What is known of one connection. ``is_direct`` is None until the first send."""

    def __init__(self, backend_pid: int) -> None:
        self.backend_pid = backend_pid
        self.is_direct: bool | None = None
        self.sends = 0


_sessions: Final[WeakKeyDictionary[Any, _Session]] = WeakKeyDictionary()


def run(connection: BaseDatabaseWrapper, make: MakeInsert, values: Mapping[str, Any]) -> Sequence[Any] | None:
    """Run an INSERT in autocommit mode with these values for its params, prepared if possible.

    Returns the first row of RETURNING. Its last column may be one that the INSERT was not made with.
    """
    session = _session_of(connection)
    # Django can't log the parameters of a prepared statement.
    if session.is_direct and session.sends >= SENDS_BEFORE and not connection.queries_logged:
        try:
            return make(is_prepared=True).run_on(postgres.prepared_cursor(connection), values)
        except Error as error:
            if sqlstate(error) != postgres.NO_SUCH_STATEMENT:
                raise
            session.is_direct = False  # nothing was inserted
    session.sends += 1
    with connection.cursor() as cursor:
        if session.is_direct is not None:
            return make().run_on(cursor, values)
        returned = make(postgres.BACKEND_PID).run_on(cursor, values)
        session.is_direct = returned is not None and returned[-1] == session.backend_pid
        return returned


def _session_of(connection: BaseDatabaseWrapper) -> _Session:
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    session = _sessions.get(connection.connection)
    if session is None:
        session = _sessions[connection.connection] = _Session(postgres.backend_pid(connection))
    return session
