"""INSERTs without model instances: making and saving an instance costs more than the rest of a send.

The columns are those of the model. A column without a value gets its field's default. One without a default, or with a
default of the database, is left out of the statement.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLInsertCompiler

from .expressions import Param
from .now import Now, is_moved


class SqlFragment(NamedTuple):
    """A fragment of SQL and its parameters."""

    sql: str
    params: Sequence[Any] = ()


class ColumnDefault(NamedTuple):
    """A field, its quoted column name, and the SQL of its default."""

    field: models.Field[Any, Any]
    name: str
    default: SqlFragment | None


def can_leave_out(alias: str) -> bool:
    """Whether the database has ``ON CONFLICT DO NOTHING``. MySQL's ``INSERT IGNORE`` would hide any other error too."""
    return connections[alias].vendor in ("postgresql", "sqlite")


def can_return(alias: str) -> bool:
    """Whether the database has ``INSERT … RETURNING``."""
    return connections[alias].features.can_return_columns_from_insert


class Insert:
    """An INSERT into the table of ``model``.

    ``values`` maps column names to values, expressions or :class:`SqlFragment` objects. With ``source``, a FROM clause,
    the statement inserts a row for each row of the source, and fragments may refer to its columns. ``returning`` has
    the columns and expressions of RETURNING. With ``if_free``, a row that would break a unique constraint is left out;
    see :func:`can_leave_out`.
    """

    def __init__(
        self,
        model: type[models.Model],
        values: Mapping[str, Any],
        alias: str,
        *,
        source: SqlFragment | None = None,
        returning: Sequence[SqlFragment] = (),
        if_free: bool = False,
    ) -> None:
        connection = connections[alias]
        compiler = _compiler(model, connection)
        self._returns = bool(returning)
        names: list[str] = []
        fragments: list[SqlFragment] = []
        for field, name, default in columns_with_defaults(model, alias):
            value = values.get(field.attname, default)
            if value is not None:
                names.append(name)
                fragments.append(value if type(value) is SqlFragment else _fragment(field, value, compiler))
        rows = f"VALUES ({_listed(fragments)})"
        if source:
            rows = f"SELECT {_listed(fragments)} FROM {source.sql}"  # noqa: S608  # SQL of this package
            fragments.append(source)
        self.sql = f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({', '.join(names)}) {rows}"
        if if_free:
            self.sql += " ON CONFLICT DO NOTHING"
        if returning:
            self.sql += f" RETURNING {_listed(returning)}"
            fragments += returning
        self.params: Sequence[Any] = [param for fragment in fragments for param in fragment.params]

    def inline_constants(self, literal: Callable[[Any], str]) -> Self:
        """Return a copy with int and str parameters replaced by constants, quoted once by ``literal``."""
        first, *rest = self.sql.split("%s")
        texts = [literal(param) if isinstance(param, str | int) else "%s" for param in self.params]
        inlined = copy.copy(self)
        inlined.sql = first + "".join(text + after for text, after in zip(texts, rest, strict=True))
        inlined.params = [param for param in self.params if not isinstance(param, str | int)]
        return inlined

    def run(self, alias: str, values: Mapping[str, Any] | None = None) -> Sequence[Any] | None:
        """Run the statement with these values for its named params.

        Returns the first row of RETURNING, None if no row was inserted, and () without a RETURNING clause.
        """
        with connections[alias].cursor() as cursor:
            return self.run_on(cursor, values)

    def run_on(self, cursor: CursorWrapper, values: Mapping[str, Any] | None = None) -> Sequence[Any] | None:
        """See :meth:`run`."""
        params = [values[param.name] if values and type(param) is Param else param for param in self.params]
        cursor.execute(self.sql, params)
        return cast("Sequence[Any] | None", cursor.fetchone()) if self._returns else ()


def _compiler(model: type[models.Model], connection: BaseDatabaseWrapper) -> SQLInsertCompiler:
    return cast("SQLInsertCompiler", InsertQuery(model).get_compiler(connection=connection))


def _fragment(field: models.Field[Any, Any], value: Any, compiler: SQLInsertCompiler) -> SqlFragment:
    if not hasattr(value, "resolve_expression"):
        return SqlFragment("%s", (field.get_db_prep_save(value, compiler.connection),))
    return SqlFragment(*compiler.compile(compiler.prepare_value(field, value)))


def columns_of(model: type[models.Model], names: Iterable[str], alias: str) -> list[SqlFragment]:
    """Return the RETURNING fragments for columns of the new row; an empty list if the database has no RETURNING."""
    if not can_return(alias):
        return []
    return [SqlFragment(connections[alias].ops.quote_name(_field(model, name).column)) for name in names]


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
    """Return each field, its quoted column name and the fragment of its default."""
    connection = connections[alias]
    found: list[ColumnDefault] = []
    for field in model._meta.concrete_fields:
        # The default of a primary key is not cached: each row needs a new one.
        default = field.get_default() if field.has_default() and not field.primary_key else None
        fragment = None if default is None else _constant(field.get_db_prep_save(default, connection), connection)
        if is_moved() and isinstance(field.db_default, Now):  # the database's own default is not moved
            fragment = _fragment(field, Now(), _compiler(model, connection))
        found.append(ColumnDefault(field, connection.ops.quote_name(str(field.column)), fragment))
    return found


def _constant(value: Any, connection: BaseDatabaseWrapper) -> SqlFragment:
    """Return a default of the model; literally if possible, so that it costs no parameter."""
    if isinstance(value, bool) and connection.vendor == "postgresql":
        return SqlFragment(str(value).lower())
    if isinstance(value, int):
        return SqlFragment(str(int(value)))
    if isinstance(value, str) and value.isalnum():
        return SqlFragment(f"'{value}'")
    return SqlFragment("%s", (value,))


def _listed(fragments: Iterable[SqlFragment]) -> str:
    return ", ".join([fragment.sql for fragment in fragments])
