"""INSERTs of rows that were never a model instance: to make one and save it costs more than all the rest of a send.

The columns are the model's all the same. One that is given no value gets its field's default; one that has none, or
leaves it to the database, is not in the statement.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from django.db import connections, models
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLInsertCompiler

from .expressions import Param


class SqlFragment(NamedTuple):
    """A piece of SQL and its parameters."""

    sql: str
    params: Sequence[Any] = ()


def can_leave_out(alias: str) -> bool:
    """Whether an INSERT can pass over a row whose place is taken; ``INSERT IGNORE`` passes over any mistake."""
    return connections[alias].vendor in ("postgresql", "sqlite")


class Insert:
    """An INSERT into the table of ``model``.

    ``values`` are by column: what a field takes, an expression, or a :class:`Piece`. ``source`` is what to put behind
    FROM for a row from each of its rows, to which pieces may refer. ``returning`` says what the statement gives back.
    With ``if_free``, a row that would break a unique constraint is left out; see :func:`can_leave_out`.
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
        compiler = cast("SQLInsertCompiler", InsertQuery(model).get_compiler(connection=connection))
        self._returns = bool(returning)
        names: list[str] = []
        pieces: list[SqlFragment] = []
        for field, name, otherwise in _columns(model, alias):
            value = values.get(field.attname, otherwise)
            if value is not None:
                names.append(name)
                pieces.append(value if type(value) is SqlFragment else _piece(field, value, compiler))
        rows = f"VALUES ({_listed(pieces)})"
        if source:
            rows = f"SELECT {_listed(pieces)} FROM {source.sql}"  # noqa: S608  # our own
            pieces.append(source)
        self.sql = f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({', '.join(names)}) {rows}"
        if if_free:
            self.sql += " ON CONFLICT DO NOTHING"
        if returning:
            self.sql += f" RETURNING {_listed(returning)}"
            pieces += returning
        self.params: Sequence[Any] = [param for piece in pieces for param in piece.params]

    def inline_constants(self, literal: Callable[[Any], str]) -> Self:
        """Return it with numbers and texts written out by ``literal``: what is the same each time is quoted once."""
        first, *rest = self.sql.split("%s")
        texts = [literal(param) if isinstance(param, str | int) else "%s" for param in self.params]
        settled = copy.copy(self)
        settled.sql = first + "".join(text + after for text, after in zip(texts, rest, strict=True))
        settled.params = [param for param in self.params if not isinstance(param, str | int)]
        return settled

    def run(self, alias: str, given: Mapping[str, Any] | None = None) -> Sequence[Any] | None:
        """Run it, with what is to stand in its blanks, and return what it gives back for a row; None for no row."""
        params = [given[param.name] if given and type(param) is Param else param for param in self.params]
        with connections[alias].cursor() as cursor:
            cursor.execute(self.sql, params)
            return cast("Sequence[Any] | None", cursor.fetchone()) if self._returns else ()


def _piece(field: models.Field[Any, Any], value: Any, compiler: SQLInsertCompiler) -> SqlFragment:
    if not hasattr(value, "resolve_expression"):
        return SqlFragment("%s", (field.get_db_prep_save(value, compiler.connection),))
    return SqlFragment(*compiler.compile(compiler.prepare_value(field, value)))


def columns_of(model: type[models.Model], names: Iterable[str], alias: str) -> list[SqlFragment]:
    """Return what asks an INSERT for columns of the new row; nothing where the database can't tell."""
    connection = connections[alias]
    if not connection.features.can_return_columns_from_insert:
        return []
    return [SqlFragment(connection.ops.quote_name(_field(model, name).column)) for name in names]


def read(model: type[models.Model], names: Iterable[str], stored: Iterable[Any], alias: str) -> dict[str, Any]:
    """Return columns that the database gave back as the model has them."""
    connection, values = connections[alias], {}
    for name, value in zip(names, stored, strict=True):
        column = _field(model, name).get_col(model._meta.db_table)
        for convert in (*connection.ops.get_db_converters(column), *column.get_db_converters(connection)):
            value = convert(value, column, connection)
        values[name] = value
    return values


def _field(model: type[models.Model], name: str) -> Any:
    return model._meta.get_field(name)


@functools.cache
def _columns(model: type[models.Model], alias: str) -> list[tuple[models.Field[Any, Any], str, SqlFragment | None]]:
    """Return each field, its column's name as SQL has it, and what goes into a column that is given nothing."""
    connection = connections[alias]
    columns: list[tuple[models.Field[Any, Any], str, SqlFragment | None]] = []
    for field in model._meta.concrete_fields:
        # A row's own id is no default: what a field makes anew for each row has to be given.
        otherwise = field.get_default() if field.has_default() and not field.primary_key else None
        piece = None if otherwise is None else SqlFragment("%s", (field.get_db_prep_save(otherwise, connection),))
        columns.append((field, connection.ops.quote_name(str(field.column)), piece))
    return columns


def _listed(pieces: Iterable[SqlFragment]) -> str:
    return ", ".join([piece.sql for piece in pieces])
