"""INSERTs without model instances: making and saving an instance costs more than the rest of a send.

The columns are those of the model. A column without a value gets its field's default. One without a default, or with a
default of the database, is left out of the statement.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from django.db import Error, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLInsertCompiler

from . import postgres
from .errors import sqlstate
from .now import Now, is_moved
from .statements import Statement


class ColumnDefault(NamedTuple):
    """A field, its quoted column name, and the SQL of its default."""

    field: models.Field[Any, Any]
    name: str
    default: Statement | None


def can_leave_out(alias: str) -> bool:
    """Whether the database has ``ON CONFLICT DO NOTHING``. MySQL's ``INSERT IGNORE`` would hide any other error too."""
    return connections[alias].vendor in ("postgresql", "sqlite")


def can_return(alias: str) -> bool:
    """Whether the database has ``INSERT … RETURNING``."""
    return connections[alias].features.can_return_columns_from_insert


def insert_values(
    model: type[models.Model],
    values: Mapping[str, Any],
    alias: str,
    *,
    source: Statement | None = None,
    returning: Sequence[Statement] = (),
    if_free: bool = False,
) -> Statement:
    """Return an INSERT into the table of ``model``.

    ``values`` maps column names to values, expressions or SQL as a :class:`Statement`. With ``source``, a FROM clause,
    it inserts a row for each row of the source, and SQL may refer to its columns. ``returning`` has the columns and
    expressions of RETURNING. With ``if_free``, a row that would break a unique constraint is left out; see
    :func:`can_leave_out`.
    """
    connection = connections[alias]
    compiler = _compiler(model, connection)
    names: list[str] = []
    parts: list[Statement] = []
    for field, name, default in columns_with_defaults(model, alias):
        value = values.get(field.attname, default)
        if value is not None:
            names.append(name)
            parts.append(value if type(value) is Statement else _part(field, value, compiler))
    listed = Statement.join(", ", parts).sql
    rows = f"VALUES ({listed})" if source is None else f"SELECT {listed} FROM {source.sql}"  # noqa: S608  # SQL of this package
    sql = f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({', '.join(names)}) {rows}"
    if if_free:
        sql += " ON CONFLICT DO NOTHING"
    if returning:
        sql += f" RETURNING {Statement.join(', ', returning).sql}"
    parts = [*parts, *([source] if source else ()), *returning]
    return Statement(sql, Statement.join("", parts).params, list if returning else None)


#: The sends on a connection after which the INSERT is prepared. Preparing takes a round trip, and pays from then on.
SENDS_BEFORE: Final = 3

#: The sends on each connection; infinitely few if nothing can be prepared there.
_sends: Final[WeakKeyDictionary[Any, float]] = WeakKeyDictionary()


def run_prepared(
    connection: BaseDatabaseWrapper, make: Callable[[bool], Statement], values: Mapping[str, Any]
) -> Sequence[Any] | None:
    """Run the INSERT of a send on PostgreSQL in autocommit mode; return the first row of RETURNING.

    From the fourth send on a connection, the server parses and plans the INSERT once. That needs the server process
    that the connection was made to: behind a pooler, each transaction may run in another. A statement that the server
    has lost (by ``DISCARD ALL``, for example) is sent again, as is only possible outside a transaction. ``make`` is
    told whether the statement is to be prepared.
    """
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    session = connection.connection
    sends = _sends[session] = _sends.get(session, 0) + 1
    if sends == SENDS_BEFORE + 1 and not postgres.is_direct(connection):
        _sends[session] = sends = float("-inf")
    # Django can't log the parameters of a prepared statement.
    if sends > SENDS_BEFORE and not connection.queries_logged:
        try:
            return make(True).first_of(postgres.prepared_cursor(connection), values)
        except Error as error:
            if sqlstate(error) != postgres.NO_SUCH_STATEMENT:
                raise
            _sends[session] = float("-inf")  # nothing was inserted
    return make(False).first(connection.alias, values)


def _compiler(model: type[models.Model], connection: BaseDatabaseWrapper) -> SQLInsertCompiler:
    return cast("SQLInsertCompiler", InsertQuery(model).get_compiler(connection=connection))


def _part(field: models.Field[Any, Any], value: Any, compiler: SQLInsertCompiler) -> Statement:
    if not hasattr(value, "resolve_expression"):
        return Statement("%s", (field.get_db_prep_save(value, compiler.connection),))
    return Statement(*compiler.compile(compiler.prepare_value(field, value)))


def columns_of(model: type[models.Model], names: Iterable[str], alias: str) -> list[Statement]:
    """Return the RETURNING columns of the new row; an empty list if the database has no RETURNING."""
    if not can_return(alias):
        return []
    return [Statement(connections[alias].ops.quote_name(_field(model, name).column)) for name in names]


def read(model: type[models.Model], names: Iterable[str], stored: Iterable[Any], alias: str) -> dict[str, Any]:
    """Convert columns that the database returned to values of the model's fields."""
    connection, values = connections[alias], {}
    for name, value in zip(names, stored, strict=True):
        column = _column(model, name)
        for convert in (*connection.ops.get_db_converters(column), *column.get_db_converters(connection)):
            value = convert(value, column, connection)
        values[name] = value
    return values


@functools.cache
def _column(model: type[models.Model], name: str) -> Any:
    return _field(model, name).get_col(model._meta.db_table)


def _field(model: type[models.Model], name: str) -> Any:
    return model._meta.get_field(name)


@functools.cache
def columns_with_defaults(model: type[models.Model], alias: str) -> list[ColumnDefault]:
    """Return each field, its quoted column name and the SQL of its default."""
    connection = connections[alias]
    found: list[ColumnDefault] = []
    for field in model._meta.concrete_fields:
        # The default of a primary key is not cached: each row needs a new one.
        default = field.get_default() if field.has_default() and not field.primary_key else None
        fragment = None if default is None else _constant(field.get_db_prep_save(default, connection), connection)
        if is_moved() and isinstance(field.db_default, Now):  # the database's own default is not moved
            fragment = _part(field, Now(), _compiler(model, connection))
        found.append(ColumnDefault(field, connection.ops.quote_name(str(field.column)), fragment))
    return found


def _constant(value: Any, connection: BaseDatabaseWrapper) -> Statement:
    """Return a default of the model; literally if possible, so that it costs no parameter."""
    if isinstance(value, bool) and connection.vendor == "postgresql":
        return Statement(str(value).lower())
    if isinstance(value, int):
        return Statement(str(int(value)))
    if isinstance(value, str) and value.isalnum():
        return Statement(f"'{value}'")
    return Statement("%s", (value,))
