"""Statements that the ORM compiles once, because a worker runs them a thousand times a second.

Building and compiling a queryset takes longer than PostgreSQL needs to execute it. A value that differs between runs is
a :class:`~horsies_django.db.expressions.Param` among the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, cast

from django.db import connections, models
from django.db.backends.utils import CursorWrapper
from django.db.models.constants import OnConflict
from django.db.models.sql import UpdateQuery

from . import postgres
from .expressions import Param

#: An impossible limit, which the compiled text replaces by a parameter, because the ORM inlines limits.
_LIMIT_PLACEHOLDER: Final = 987_654_321


class JsonFunctions(NamedTuple):
    """The database's names of the functions that build arrays of rows and of values, and of the text type."""

    rows: str
    values: str
    text: str


#: By database vendor.
JSON: Final[Mapping[str, JsonFunctions]] = {
    "postgresql": JsonFunctions("json_agg", "json_build_array", "text"),
    "sqlite": JsonFunctions("json_group_array", "json_array", "text"),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with its parameters, of which some are placeholders (:class:`Param`)."""

    sql: str
    params: tuple[Any, ...]

    @classmethod
    def update(cls, rows: models.QuerySet[Any], **values: Any) -> Self:
        """Compile ``rows.update(**values)``."""
        query = cast("UpdateQuery", rows.query.chain(UpdateQuery))
        query.add_update_values(values)
        sql, params = query.get_compiler(rows.db).as_sql()
        return cls(sql, tuple(params))

    @classmethod
    def select(cls, rows: models.QuerySet[Any], limit: Param | None = None, *, is_part: bool = True) -> Self:
        """Compile the SELECT of ``rows``, whose limit each run gives.

        As a part of another statement it gives columns as they are; see :mod:`~horsies_django.db.fields`.
        """
        query = (rows if limit is None else rows[:_LIMIT_PLACEHOLDER]).query.chain()
        query.subquery = is_part
        sql, params = query.get_compiler(rows.db).as_sql()
        # No parameter follows the limit.
        return (
            cls(sql, tuple(params))
            if limit is None
            else cls(sql.replace(str(_LIMIT_PLACEHOLDER), "%s"), (*params, limit))
        )

    @classmethod
    def insert(
        cls,
        model: type[models.Model],
        rows: models.QuerySet[Any],
        columns: Mapping[str, Any],
        prefix: str = "",
        *,
        may_exist: bool = True,
    ) -> Self:
        """Compile ``INSERT … SELECT``: one row of ``model`` for each of ``rows``, with expressions over it as columns.

        Model instances would cost as much as all the rest of a task's life. With ``may_exist``, a row that is there
        already stays as it is; otherwise it raises IntegrityError.
        """
        connection = connections[rows.db]
        quote = connection.ops.quote_name
        source = rows.order_by().values_list(*columns.values())
        query = source.query.chain()
        query.subquery = True
        select, params = query.get_compiler(rows.db).as_sql()
        on_conflict = OnConflict.IGNORE if may_exist else None
        insert = connection.ops.insert_statement(on_conflict=on_conflict)
        suffix = connection.ops.on_conflict_suffix_sql([], on_conflict, [], [])
        names = ", ".join(map(quote, columns))
        return cls(f"{prefix}{insert} {quote(model._meta.db_table)} ({names}) {select} {suffix}", tuple(params))

    def inline_constants(self) -> Self:
        """Inline all parameters except the placeholders, so that PostgreSQL can plan the statement once.

        It takes a partial index only where it can read the index's condition in the text.
        """
        first, *rest = self.sql.split("%s")
        texts = [f"{'%s' if isinstance(param, Param) else postgres.literal(param)}" for param in self.params]
        sql = first + "".join(text + after for text, after in zip(texts, rest, strict=True))
        return type(self)(sql, tuple(param for param in self.params if isinstance(param, Param)))

    def bind(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the parameters of one run."""
        return [given[param.name] if type(param) is Param else param for param in self.params]

    def run(self, alias: str, given: Mapping[str, Any] | None = None) -> int:
        """Run the statement; return the number of rows."""
        with connections[alias].cursor() as cursor:
            cursor.execute(self.sql, self.bind(given or {}))
            return int(cursor.rowcount)


class CompiledSelect:
    """A compiled SELECT. If it has a limit, each run gives it."""

    def __init__(self, rows: models.QuerySet[Any], columns: Iterable[Any], limit: Param | None = None) -> None:
        selected = rows.values_list(*columns)
        self._alias = rows.db
        self.statement = Statement.select(selected, limit, is_part=False)
        self._compiler = selected.query.get_compiler(rows.db)
        self._compiler.pre_sql_setup()
        self._converters = self._compiler.get_converters([column for column, *_ in self._compiler.select])

    def run(self, given: Mapping[str, Any]) -> list[Any]:
        """Run the statement and return the rows."""
        with connections[self._alias].cursor() as cursor:
            return self.read(cursor, self.statement, given)

    def read(self, cursor: CursorWrapper, statement: Statement, given: Mapping[str, Any]) -> list[Any]:
        """Run a statement that returns the columns of this SELECT, and return the rows."""
        cursor.execute(statement.sql, statement.bind(given))
        return self.fetch(cursor)

    def execute(self, cursor: CursorWrapper, given: Mapping[str, Any]) -> None:
        """Run it and leave the rows to :meth:`fetch`, so that a pipeline sends several in one round trip."""
        cursor.execute(self.statement.sql, self.statement.bind(given))

    def fetch(self, cursor: CursorWrapper) -> list[Any]:
        """Return the rows of the statement that ran on this cursor."""
        rows: list[Any] = cursor.fetchall()
        return list(self._compiler.apply_converters(rows, self._converters)) if self._converters else rows
