"""Statements that the ORM has written once, for what a worker says a thousand times a second.

To build a queryset and compile it takes the ORM longer than PostgreSQL takes to carry it out. What differs from run to
run is a :class:`~horsies_django.db.expressions.Param` among the parameters.
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

#: A limit that nobody means, in whose place the compiled text gets a parameter: the ORM writes limits out.
_LIMIT_PLACEHOLDER: Final = 987_654_321


class JsonFunctions(NamedTuple):
    """What a database calls the function that makes an array of rows, that of values, and the type of a text."""

    rows: str
    values: str
    text: str


#: By the database's vendor.
JSON: Final[Mapping[str, JsonFunctions]] = {
    "postgresql": JsonFunctions("json_agg", "json_build_array", "text"),
    "sqlite": JsonFunctions("json_group_array", "json_array", "text"),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL, and its parameters, some of them blank."""

    sql: str
    params: tuple[Any, ...]

    @classmethod
    def update(cls, rows: models.QuerySet[Any], **values: Any) -> Self:
        """The UPDATE that ``rows.update(**values)`` would be."""
        query = cast("UpdateQuery", rows.query.chain(UpdateQuery))
        query.add_update_values(values)
        sql, params = query.get_compiler(rows.db).as_sql()
        return cls(sql, tuple(params))

    @classmethod
    def select(cls, rows: models.QuerySet[Any], limit: Param | None = None, *, is_part: bool = True) -> Self:
        """The SELECT that ``rows`` would be, of at most as many as each run says.

        As a part of another statement it gives columns as they are; see :mod:`~horsies_django.db.fields`.
        """
        query = (rows if limit is None else rows[:_LIMIT_PLACEHOLDER]).query.chain()
        query.subquery = is_part
        sql, params = query.get_compiler(rows.db).as_sql()
        # Nothing that takes a parameter comes after the limit.
        return (
            cls(sql, tuple(params))
            if limit is None
            else cls(sql.replace(str(_LIMIT_PLACEHOLDER), "%s"), (*params, limit))
        )

    @classmethod
    def insert(
        cls, model: type[models.Model], rows: models.QuerySet[Any], columns: Mapping[str, Any], prefix: str = ""
    ) -> Self:
        """``INSERT … SELECT``: one row of ``model`` for each of ``rows``, its columns being expressions over that row.

        Model instances would cost as much as all the rest of a task's life. A row that is there already stays as it is.
        """
        connection = connections[rows.db]
        quote = connection.ops.quote_name
        source = rows.order_by().values_list(*columns.values())
        query = source.query.chain()
        query.subquery = True
        select, params = query.get_compiler(rows.db).as_sql()
        insert = connection.ops.insert_statement(on_conflict=OnConflict.IGNORE)
        suffix = connection.ops.on_conflict_suffix_sql([], OnConflict.IGNORE, [], [])
        names = ", ".join(map(quote, columns))
        return cls(f"{prefix}{insert} {quote(model._meta.db_table)} ({names}) {select} {suffix}", tuple(params))

    def inline_constants(self) -> Self:
        """Return it with all but the blanks written out, as PostgreSQL wants it to plan it once.

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
        """Run it and return how many rows it met."""
        with connections[alias].cursor() as cursor:
            cursor.execute(self.sql, self.bind(given or {}))
            return int(cursor.rowcount)


class CompiledSelect:
    """A SELECT; with a limit, of at most as many rows as each run says."""

    def __init__(self, rows: models.QuerySet[Any], columns: Iterable[Any], limit: Param | None = None) -> None:
        selected = rows.values_list(*columns)
        self._alias = rows.db
        self.statement = Statement.select(selected, limit, is_part=False)
        self._compiler = selected.query.get_compiler(rows.db)
        self._compiler.pre_sql_setup()
        self._converters = self._compiler.get_converters([column for column, *_ in self._compiler.select])

    def run(self, given: Mapping[str, Any]) -> list[Any]:
        """Run it and return the rows."""
        with connections[self._alias].cursor() as cursor:
            return self.read(cursor, self.statement, given)

    def read(self, cursor: CursorWrapper, statement: Statement, given: Mapping[str, Any]) -> list[Any]:
        """Run it as part of another statement, with these columns as the first, and return the rows."""
        cursor.execute(statement.sql, statement.bind(given))
        return self.fetch(cursor)

    def execute(self, cursor: CursorWrapper, given: Mapping[str, Any]) -> None:
        """Run it and leave the rows to :meth:`fetched`: in a pipeline, several go in one round trip then."""
        cursor.execute(self.statement.sql, self.statement.bind(given))

    def fetch(self, cursor: CursorWrapper) -> list[Any]:
        """Return the rows of what was run on this cursor."""
        rows: list[Any] = cursor.fetchall()
        return list(self._compiler.apply_converters(rows, self._converters)) if self._converters else rows
