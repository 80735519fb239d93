"""Features of PostgreSQL that the ORM does not have: NOTIFY, pipelines, many rows in two parameters.

The only module that imports psycopg, apart from a check that it loads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Self, cast
from weakref import WeakKeyDictionary

from django.db import Error, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from .errors import LOCK_NOT_AVAILABLE, sqlstate
from .expressions import Param
from .statements import Statement

#: The one channel of all queues; notifications.py has its payloads.
CHANNEL: Final = "horsies_tasks"

#: The channel of completions (see completions.py), and the payload by which a process subscribes to them.
COMPLETIONS: Final = "horsies_ended"
SUBSCRIBE: Final = "?waiting"

#: The prefix of the payload that a worker sends to its own listener, to learn whether notifications arrive.
PING: Final = "?"


#: Settings of a session that keeps its plans. A plan may be made while the table is empty, and must still be right for
#: millions of rows.
_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


#: The rows of some tables, and the dead ones among them that vacuum has yet to remove, as a JSON array. As of the last
#: report of statistics: no row is counted.
TUPLES: Final = """
SELECT CAST(json_build_array(COALESCE(SUM(n_live_tup), 0), COALESCE(SUM(n_dead_tup), 0)) AS text)
FROM pg_stat_user_tables WHERE schemaname = ANY (current_schemas(false)) AND relname = ANY (%s)
"""

#: How many seconds the oldest open transaction of this database is old; NULL if there is none. Vacuum can't remove what
#: it may still see. A role without pg_read_all_stats sees only its own transactions.
OLDEST_TRANSACTION: Final = """
SELECT CAST(EXTRACT(EPOCH FROM MAX(clock_timestamp() - xact_start)) AS double precision) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
"""


def age_of_replica(alias: str) -> float | None:
    """Return how many seconds ago the last change that a replica has was committed; None for anything else."""
    if connections[alias].vendor != "postgresql":
        return None
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT EXTRACT(EPOCH FROM clock_timestamp() - pg_last_xact_replay_timestamp())::double precision "
            "WHERE pg_is_in_recovery()"
        )
        row = cursor.fetchone()
    return None if row is None else row[0]


#: Defaults for our own connections: a server that is gone is noticed within some ten seconds, whether an answer is
#: awaited or not. Seconds, except the last in milliseconds.
NETWORK: Final[Mapping[str, int]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

#: The longest wait for a lock where none is expected, unless the server, the role or OPTIONS set a limit.
LOCK_TIMEOUT: Final = "10s"


def own_options(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a project's OPTIONS for a connection of our own: with a name, no pool, timeouts, and READ COMMITTED."""
    from psycopg import IsolationLevel

    own = {**NETWORK, **options, "application_name": f"horsies {name}"[:63]}
    own.pop("pool", None)
    own["isolation_level"] = IsolationLevel.READ_COMMITTED.value  # updates must see what was just committed
    return own


def set_up_session(connection: BaseDatabaseWrapper, *, is_busy: bool, waits: bool) -> None:
    """Set up the session of a new connection of our own, in one statement.

    A busy connection only queries the queue's tables: it uses their indexes and keeps its plans. A connection that
    ``waits`` has no limit for locks. No statement is compiled to machine code: it takes half a second, and none of ours
    runs for that long.

    Nothing is set behind a pooler, where another client gets the session with the next transaction.
    """
    settings = {"default_transaction_isolation": "'read committed'", "jit": "'off'"}
    if not waits:
        current = "current_setting('lock_timeout')"
        settings["lock_timeout"] = f"CASE {current} WHEN '0' THEN '{LOCK_TIMEOUT}' ELSE {current} END"
    if is_busy:
        settings |= {name: f"'{value}'" for name, value in _PLANS.items()}
    columns = ", ".join(f"set_config('{name}', {value}, false)" for name, value in settings.items())
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {columns} WHERE pg_backend_pid() = %s",  # our own
            [connection.connection.info.backend_pid],
        )
        is_direct = cursor.fetchone() is not None
    if is_direct and is_busy:
        connection.connection.prepare_threshold = 0


#: What DISCARD ALL undoes, apart from prepared statements.
_RESET: Final = (
    "CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); "
    "DISCARD TEMP; DISCARD SEQUENCES"
)


def reset_session(connection: BaseDatabaseWrapper) -> bool:
    """Make the session of an open connection again what Django has made it, in one round trip.

    Return False for another database, and for a connection that is always in a transaction.
    """
    if connection.vendor != "postgresql" or not connection.autocommit:
        return False
    from psycopg import sql

    statements = [_RESET, sql.SQL("SET TIME ZONE {}").format(connection.timezone_name).as_string()]
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        statements.append(sql.SQL("SET ROLE {}").format(role).as_string())
    with connection.wrap_database_errors:
        connection.connection.execute("; ".join(statements), prepare=False)
    return True


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server has an open transaction on this connection, by the driver's knowledge from the last answer."""
    from psycopg.pq import TransactionStatus

    return connection.connection.pgconn.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def preparing_cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """Return a cursor that prepares statements if :func:`set_up_session` enabled it; otherwise an ordinary one."""
    if connection.vendor != "postgresql":
        return connection.cursor()
    import psycopg

    connection.ensure_connection()
    if connection.connection.prepare_threshold is None:
        return connection.cursor()
    return connection.make_cursor(cast("CursorWrapper", psycopg.Cursor(connection.connection)))


#: The code for a prepared statement that does not exist.
_NO_SUCH_STATEMENT: Final = "26000"


def _prepared_cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """Return a cursor that prepares each statement at once."""
    return connection.make_cursor(cast("CursorWrapper", _preparing_cursor_class()(connection.connection)))


@functools.cache
def _preparing_cursor_class() -> type[Any]:
    import psycopg

    class PreparingCursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
            # Django sets the threshold to None, which disables even this; it stays so for the project's statements.
            before, self.connection.prepare_threshold = self.connection.prepare_threshold, 0
            try:
                return super().execute(query, params, prepare=True, **options)
            finally:
                self.connection.prepare_threshold = before

    return PreparingCursor


#: The sends and steps on a connection after which the INSERT is prepared. That takes a round trip, and pays later.
SENDS_BEFORE: Final = 3

#: The sends and steps on each connection; infinitely few if nothing can be prepared there.
_sends: Final[WeakKeyDictionary[Any, float]] = WeakKeyDictionary()


def run_prepared(
    connection: BaseDatabaseWrapper, make: Callable[[bool], Statement], values: Mapping[str, Any]
) -> Sequence[Any] | None:
    """Run the INSERT of a send or a step on PostgreSQL in autocommit mode; return the first row of RETURNING, or None.

    From the fourth on a connection, the server parses and plans the INSERT once. That needs the server process
    that the connection was made to: behind a pooler, each transaction may run in another. The third INSERT returns the
    process that runs it. A statement that the server has lost (by ``DISCARD ALL``, for example) is sent again, as is
    only possible outside a transaction. ``make`` returns the INSERT for either case: to be prepared, or not.
    """
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    session = connection.connection
    sends = _sends.get(session, 0)
    # Django can't log the parameters of a prepared statement.
    if sends >= SENDS_BEFORE and not connection.queries_logged:
        try:
            return make(True).first_of(_prepared_cursor(connection), values)
        except Error as error:
            if sqlstate(error) != _NO_SUCH_STATEMENT:
                raise
            _sends[session] = sends = float("-inf")  # nothing was inserted
    statement = make(False)
    if sends != SENDS_BEFORE - 1:
        _sends[session] = sends + 1
        return statement.first(connection.alias, values)
    sql = f"{statement.sql}{',' if statement.convert else ' RETURNING'} pg_backend_pid()"
    row = Statement(sql, statement.params, list).first(connection.alias, values)
    if row is None:
        return None
    _sends[session] = SENDS_BEFORE if row[-1] == session.info.backend_pid else float("-inf")
    return row[:-1]


def pipeline(connection: BaseDatabaseWrapper) -> AbstractContextManager[Any]:
    """Send the statements in this block in one round trip, up to the first whose rows are fetched, if the driver can.

    Each statement still has a snapshot of its own. The number of rows that it met is unknown until the block ends, and
    an error may be raised by a later statement or by the end of the block.
    """
    if connection.vendor != "postgresql":
        return nullcontext()
    import psycopg

    connection.ensure_connection()
    return _pipelined(connection) if psycopg.Pipeline.is_supported() else nullcontext()


@contextmanager
def _pipelined(connection: BaseDatabaseWrapper) -> Iterator[None]:
    with connection.wrap_database_errors, connection.connection.pipeline():
        yield


@contextmanager
def waiting_for_locks(connection: BaseDatabaseWrapper, milliseconds: int) -> Iterator[None]:
    """Limit the wait for locks in this block of a transaction; a longer wait raises (see :func:`is_lock_timeout`).

    In a pipeline that takes no round trip. Other databases are not limited.
    """
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {milliseconds:d}")
        yield
        cursor.execute("SET LOCAL lock_timeout TO DEFAULT")


def is_lock_timeout(error: Error) -> bool:
    """Whether the error says that another transaction held a lock for too long."""
    return sqlstate(error) == LOCK_NOT_AVAILABLE


def entries_and_scans(alias: str, index: str) -> tuple[int, int]:
    """Return how many entries of an index, dead ones included, all scans have read, and how many scans there were.

    The server reports them up to a second late.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_get_tuples_returned(%s::regclass), pg_stat_get_numscans(%s::regclass)", [index, index]
        )
        entries, scans = cursor.fetchone()
    return entries, scans


def literal(value: Any) -> str:
    """Return a value as SQL, for a statement that has parameters as well."""
    from psycopg import sql

    return sql.Literal(value).as_string(None).replace("%", "%%")


def inline_constants(statement: Statement, alias: str) -> Statement:
    """Inline all parameters except the placeholders, so that PostgreSQL can plan the statement once.

    It takes a partial index only where it can read the index's condition in the text. Other databases get the statement
    as it is.
    """
    if connections[alias].vendor != "postgresql":
        return statement
    first, *rest = statement.sql.split("%s")
    texts = ["%s" if isinstance(param, Param) else literal(param) for param in statement.params]
    sql = first + "".join(text + after for text, after in zip(texts, rest, strict=True))
    return statement._replace(sql=sql, params=tuple(param for param in statement.params if isinstance(param, Param)))


def can_listen(alias: str) -> bool:
    """Whether the database of ``alias`` has LISTEN and NOTIFY."""
    return connections[alias].vendor == "postgresql"


_NOTIFY: Final = "SELECT pg_notify(%s, %s)"

#: The same where it is all of a transaction. Its commit need not reach the disk: so the cluster-wide lock is not held
#: for a flush.
_NOTIFY_ALONE: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"


def notify(alias: str, payload: str, channel: str = CHANNEL) -> None:
    """Notify every listener of ``channel``, once the current transaction commits, with a statement of its own."""
    connection = connections[alias]
    sql = _NOTIFY_ALONE if connection.get_autocommit() else _NOTIFY
    with connection.cursor() as cursor:
        cursor.execute(sql, [channel, payload])


def notification(payload: str | Param) -> Statement:
    """Return SQL that notifies every listener, once the statement that it is part of has committed."""
    return Statement("pg_notify(%s, %s)", (CHANNEL, payload))


@functools.cache
def or_lock(alias: str, model: type[models.Model], name: str) -> str:
    """Return the end of an INSERT that locks an existing row with the same unique value instead of inserting one.

    ``name`` is the partial unique constraint of one column that decides this; no two of the new rows may have the same
    value. ``DO NOTHING`` would skip the existing row without a lock.
    """
    constraint = next(candidate for candidate in model._meta.constraints if candidate.name == name)
    assert isinstance(constraint, models.UniqueConstraint)
    created = str(constraint.create_sql(model, connections[alias].schema_editor()))
    # Literally, without parameters: PostgreSQL has to recognize the condition of the index.
    condition = created.partition(" WHERE ")[2]
    column, table = (connections[alias].ops.quote_name(name) for name in (constraint.fields[0], model._meta.db_table))
    return f"ON CONFLICT ({column}) WHERE {condition} DO UPDATE SET {column} = {table}.{column} WHERE false"
