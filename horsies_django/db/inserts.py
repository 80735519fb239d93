"""INSERTs without model instances: making and saving an instance costs more than the rest of a send.

The columns are those of the model. A column without a value gets its field's default. One without a default, or with a
default of the database, is left out of the statement.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLInsertCompiler

from .now import Now, is_moved
from .statements import Statement


class ColumnDefault(NamedTuple):
    """A field, its quoted column name, and the SQL of its default."""

    field: models.Field[Any, Any]
    name: str
    default: Statement | None


#: Leaves out a row that would break a unique constraint.
DO_NOTHING: Final = "ON CONFLICT DO NOTHING"


def insert_values(
    model: type[models.Model],
    values: Mapping[str, Any],
    alias: str,
    *,
    source: Statement | None = None,
    returning: Sequence[Statement] = (),
    on_conflict: str = "",
) -> Statement:
    """Return an INSERT into the table of ``model``.

    ``values`` maps column names to values, expressions or SQL as a :class:`Statement`. With ``source``, a FROM clause,
    it inserts a row for each row of the source, and SQL may refer to its columns. ``returning`` has the columns and
    expressions of RETURNING. ``on_conflict`` says what happens to a row that would break a unique constraint, as
    :data:`DO_NOTHING` does; without it, that is an error.
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
    listed = ", ".join([part.sql for part in parts])
    rows = f"VALUES ({listed})" if source is None else f"SELECT {listed} FROM {source.sql}"  # noqa: S608  # SQL of this package
    sql = f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({', '.join(names)}) {rows}"
    if on_conflict:
        sql += f"{' WHERE true' if source else ''} {on_conflict}"  # without WHERE, SQLite takes ON for that of a join
    if returning:
        sql += f" RETURNING {Statement.join(', ', returning).sql}"
    parts = [*parts, *([source] if source else ()), *returning]
    return Statement(sql, [param for part in parts for param in part.params], list if returning else None)


def _compiler(model: type[models.Model], connection: BaseDatabaseWrapper) -> SQLInsertCompiler:
    return cast("SQLInsertCompiler", InsertQuery(model).get_compiler(connection=connection))


def _part(field: models.Field[Any, Any], value: Any, compiler: SQLInsertCompiler) -> Statement:
    if not hasattr(value, "resolve_expression"):
        return Statement("%s", (field.get_db_prep_save(value, compiler.connection),))
    return Statement(*compiler.compile(compiler.prepare_value(field, value)))


def columns_of(model: type[models.Model], names: Iterable[str], alias: str) -> list[Statement]:
    """Return the RETURNING columns of the new row."""
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    return [Statement(connections[alias].ops.quote_name(field.column)) for field in fields]


@functools.cache
def columns_with_defaults(model: type[models.Model], alias: str) -> list[ColumnDefault]:
    """Return each field, its quoted column name and the SQL of its default."""
    connection = connections[alias]
    defaults: list[ColumnDefault] = []
    for field in model._meta.concrete_fields:
        # The default of a primary key is not cached: each row needs a new one.
        default = field.get_default() if field.has_default() and not field.primary_key else None
        fragment = None if default is None else _constant(field.get_db_prep_save(default, connection), connection)
        if is_moved() and isinstance(field.db_default, Now):  # the database's own default is not moved
            fragment = _part(field, Now(), _compiler(model, connection))
        defaults.append(ColumnDefault(field, connection.ops.quote_name(str(field.column)), fragment))
    return defaults


def _constant(value: Any, connection: BaseDatabaseWrapper) -> Statement:
    """Return a default of the model; literally if possible, so that it costs no parameter."""
    if isinstance(value, bool) and connection.vendor == "postgresql":
        return Statement(str(value).lower())
    if isinstance(value, int):
        return Statement(str(int(value)))
    if isinstance(value, str) and value.isalnum():
        return Statement(f"'{value}'")
    return Statement("%s", (value,))
