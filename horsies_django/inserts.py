"""INSERTs of rows that were never a model instance: to make one and save it costs more than all the rest of a send.

The columns are the model's all the same. One that is given no value gets its field's default; one that has none, or
leaves it to the database, is not in the statement.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from django.db import connections, models
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLInsertCompiler


class Piece(NamedTuple):
    """A piece of SQL and its parameters."""

    sql: str
    params: Sequence[Any] = ()


class Insert:
    """An INSERT into the table of ``model``.

    ``values`` are by column: what a field takes, an expression, or a :class:`Piece`. ``source`` is what to put behind
    FROM for a row from each of its rows, to which pieces may refer. ``returning`` says what the statement gives back.
    """

    def __init__(
        self,
        model: type[models.Model],
        values: Mapping[str, Any],
        alias: str,
        *,
        source: Piece | None = None,
        returning: Sequence[Piece] = (),
    ) -> None:
        self._connection = connections[alias]
        self._compiler: SQLInsertCompiler | None = None
        self._returns = bool(returning)
        names: list[str] = []
        pieces: list[Piece] = []
        for field, name, otherwise in _columns(model, alias):
            value = values.get(field.attname, otherwise)
            if value is not None:
                names.append(name)
                pieces.append(value if type(value) is Piece else self._piece(field, value))
        rows = f"VALUES ({_listed(pieces)})"
        if source:
            rows = f"SELECT {_listed(pieces)} FROM {source.sql}"  # noqa: S608  # our own
            pieces.append(source)
        self.sql = f"INSERT INTO {self._connection.ops.quote_name(model._meta.db_table)} ({', '.join(names)}) {rows}"
        if returning:
            self.sql += f" RETURNING {_listed(returning)}"
            pieces += returning
        self.params = [param for piece in pieces for param in piece.params]

    def run(self) -> Sequence[Any]:
        """Run it, and return what it gives back for a row."""
        with self._connection.cursor() as cursor:
            cursor.execute(self.sql, self.params)
            return cast("Sequence[Any]", cursor.fetchone()) if self._returns else ()

    def _piece(self, field: models.Field[Any, Any], value: Any) -> Piece:
        if not hasattr(value, "resolve_expression"):
            return Piece("%s", (field.get_db_prep_save(value, self._connection),))
        if self._compiler is None:
            query = InsertQuery(field.model)
            self._compiler = cast("SQLInsertCompiler", query.get_compiler(connection=self._connection))
        return Piece(*self._compiler.compile(self._compiler.prepare_value(field, value)))


def columns_of(model: type[models.Model], names: Iterable[str], alias: str) -> list[Piece]:
    """Return what asks an INSERT for columns of the new row; nothing where the database can't tell."""
    connection = connections[alias]
    if not connection.features.can_return_columns_from_insert:
        return []
    return [Piece(connection.ops.quote_name(_field(model, name).column)) for name in names]


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
def _columns(model: type[models.Model], alias: str) -> list[tuple[models.Field[Any, Any], str, Piece | None]]:
    """Return each field, its column's name as SQL has it, and what goes into a column that is given nothing."""
    connection = connections[alias]
    columns: list[tuple[models.Field[Any, Any], str, Piece | None]] = []
    for field in model._meta.concrete_fields:
        # A row's own id is no default: what a field makes anew for each row has to be given.
        otherwise = field.get_default() if field.has_default() and not field.primary_key else None
        piece = None if otherwise is None else Piece("%s", (field.get_db_prep_save(otherwise, connection),))
        columns.append((field, connection.ops.quote_name(str(field.column)), piece))
    return columns


def _listed(pieces: Iterable[Piece]) -> str:
    return ", ".join([piece.sql for piece in pieces])
