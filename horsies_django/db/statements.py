"""Statements that the ORM compiles once, and statements that are composed of such parts.

Building and compiling a queryset takes longer than PostgreSQL needs to execute it. A value that differs between runs is
a :class:`~horsies_django.db.expressions.Param` among the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from string import Formatter
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

from django.db import connections, models
from django.db.backends.utils import CursorWrapper
from django.db.models import BooleanField, Expression, ExpressionWrapper, Q, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql import UpdateQuery

from .expressions import Param

#: An impossible limit, which the compiled text replaces, because the ORM inlines limits.
_LIMIT_PLACEHOLDER: Final = 987_654_321


class JsonFunctions(NamedTuple):
    """The database's functions that build arrays of rows and of values, its text type, and the rows of an array.

    ``first`` is the first value of an array, as text.
    """

    rows: str
    values: str
    text: str
    elements: str
    first: str


#: By database vendor.
JSON: Final[Mapping[str, JsonFunctions]] = {
    "postgresql": JsonFunctions(
        "json_agg", "json_build_array", "text", "jsonb_array_elements_text(%s::jsonb)", "({} ->> 0)"
    ),
    "sqlite": JsonFunctions("json_group_array", "json_array", "text", "json_each(%s)", "json_extract({}, '$[0]')"),
}


class Statement(NamedTuple):
    """A statement or a part of one: SQL and its parameters, of which some are placeholders (:class:`Param`).

    ``convert`` converts the rows that it returns; it is None if the statement returns no rows.
    """

    sql: str
    params: Sequence[Any] = ()
    convert: Callable[[list[Any]], list[Any]] | None = None

    @classmethod
    def compose(cls, template: str, **parts: Statement | Param | str | int) -> Self:
        """Insert parts into a template of SQL, as :meth:`str.format` does, and collect their parameters in order.

        A part that is a text or a number has no parameters.
        """
        sql, params = "", list[Any]()
        for text, name, *_ in Formatter().parse(template):
            sql += text
            if name is not None:
                part = parts[name]
                if isinstance(part, Param):
                    part = Statement("%s", (part,))
                if isinstance(part, Statement):
                    params += part.params
                sql += part.sql if isinstance(part, Statement) else str(part)
        return cls(sql, tuple(params))

    @classmethod
    def join(cls, separator: str, parts: Collection[Statement]) -> Self:
        """Join parts, as :meth:`str.join` does."""
        return cls(
            separator.join([part.sql for part in parts]), tuple(param for part in parts for param in part.params)
        )

    @classmethod
    def update(cls, rows: QuerySet[Any], **values: Any) -> Self:
        """Compile ``rows.update(**values)``."""
        query = cast("UpdateQuery", rows.query.chain(UpdateQuery))
        query.add_update_values(values)
        sql, params = query.get_compiler(rows.db).as_sql()
        return cls(sql, tuple(params))

    @classmethod
    def part(cls, rows: QuerySet[Any], limit: Param | Statement | None = None) -> Self:
        """Compile the SELECT of ``rows`` as a part of another statement, which gets columns as they are stored."""
        return cls._compile(rows, limit, is_part=True)

    @classmethod
    def select(cls, rows: QuerySet[Any], *columns: Any, limit: Param | Statement | None = None) -> Self:
        """Compile the SELECT of some columns of ``rows``. Its rows are converted as those of the queryset are.

        If there is a ``limit``, each run gives it.
        """
        return cls._compile(rows.values_list(*columns), limit, is_part=False)

    @classmethod
    def _compile(cls, rows: QuerySet[Any], limit: Param | Statement | None, *, is_part: bool) -> Self:
        query = (rows if limit is None else rows[:_LIMIT_PLACEHOLDER]).query.chain()
        query.subquery = is_part
        compiler = query.get_compiler(rows.db)
        sql, params = compiler.as_sql()
        converters = {} if is_part else compiler.get_converters([column for column, *_ in compiler.select])
        convert = (lambda row: list(compiler.apply_converters(row, converters))) if converters else list
        if limit is None:
            return cls(sql, tuple(params), convert)
        # No parameter follows the limit.
        last = cls("%s", (limit,)) if isinstance(limit, Param) else limit
        return cls(sql.replace(str(_LIMIT_PLACEHOLDER), last.sql), (*params, *last.params), convert)

    @classmethod
    def insert(
        cls,
        model: type[models.Model],
        rows: QuerySet[Any],
        columns: Mapping[str, Any],
        *,
        may_exist: bool = True,
        key: Sequence[str] = (),
        changed: Sequence[str] = (),
        suffix: str = "",
        locks: bool = False,
    ) -> Self:
        """Compile ``INSERT … SELECT``: one row of ``model`` for each of ``rows``, with expressions over it as columns.

        Model instances would cost as much as all the rest of a task's life. With ``may_exist``, a row that is there
        already stays as it is, or if it has the same ``key`` gets the new values of the columns ``changed``; otherwise
        it raises IntegrityError. ``suffix`` is SQL that follows, with RETURNING; ``locks`` locks ``rows``.
        """
        connection = connections[rows.db]
        operations = connection.ops
        on_conflict = OnConflict.UPDATE if changed else OnConflict.IGNORE if may_exist else None
        names = ", ".join(map(operations.quote_name, columns))
        insert = f"{operations.insert_statement(on_conflict)} {operations.quote_name(model._meta.db_table)} ({names})"
        select = cls.part(rows.order_by().values_list(*columns.values()))
        locks = locks and connection.features.has_select_for_no_key_update
        lock = operations.for_update_sql(no_key=True) if locks else ""
        suffix = f"{lock} {operations.on_conflict_suffix_sql([], on_conflict, changed, key)} {suffix}"
        return cls(f"{insert} {select.sql} {suffix}".rstrip(), select.params, list if "RETURNING" in suffix else None)

    def keys(self, alias: str, column: str) -> set[UUID]:
        """Run the INSERT or UPDATE; return a UUID column of the rows that it has changed."""
        name = connections[alias].ops.quote_name(column)
        rows = self._replace(sql=f"{self.sql} RETURNING {name}").rows(alias)
        return {key if isinstance(key, UUID) else UUID(key) for (key,) in rows}

    def bind(self, values: Mapping[str, Any] | None) -> list[Any]:
        """Return the parameters of one run."""
        return [values[param.name] if values and type(param) is Param else param for param in self.params]

    def execute(self, cursor: CursorWrapper, values: Mapping[str, Any] | None = None) -> None:
        """Execute it and leave the rows to :meth:`fetch`, so that a pipeline sends several in one round trip."""
        cursor.execute(self.sql, self.bind(values))

    def fetch(self, cursor: CursorWrapper) -> list[Any]:
        """Return the converted rows of the statement that this cursor has executed."""
        rows = cursor.fetchall()
        return self.convert(rows) if self.convert else rows

    def rows(self, alias: str, values: Mapping[str, Any] | None = None) -> list[Any]:
        """Run the statement; return its rows."""
        with connections[alias].cursor() as cursor:
            self.execute(cursor, values)
            return self.fetch(cursor)

    def union_all(self, alias: str, runs: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Run the statement for each of these values, all of them in one; return all rows."""
        sql = " UNION ALL ".join([f"SELECT * FROM ({self.sql}) AS part"] * len(runs))  # noqa: S608  # compiled by the ORM
        params = [param for values in runs for param in self.bind(values)]
        return self._replace(sql=sql, params=params).rows(alias) if runs else []

    def run(self, alias: str, values: Mapping[str, Any] | None = None) -> int:
        """Run the statement; return the number of rows that it has changed."""
        with connections[alias].cursor() as cursor:
            self.execute(cursor, values)
            return int(cursor.rowcount)

    def first(self, alias: str, values: Mapping[str, Any] | None = None) -> Sequence[Any] | None:
        """Run the statement; return its first row, None if there is none, and () if the statement returns no rows."""
        with connections[alias].cursor() as cursor:
            return self.first_of(cursor, values)

    def first_of(self, cursor: CursorWrapper, values: Mapping[str, Any] | None = None) -> Sequence[Any] | None:
        """See :meth:`first`."""
        self.execute(cursor, values)
        return cast("Sequence[Any] | None", cursor.fetchone()) if self.convert else ()


# Many small queries in one statement.

NO_CONDITIONS: Final[Mapping[str, Q]] = {}


def run_queries(database: str, parts: Mapping[str, Statement]) -> dict[str, Any]:
    """Run queries that each return one value, in one statement. Return the values by name."""
    whole = Statement.compose("SELECT ({parts})", parts=Statement.join("), (", parts.values()))
    return dict(zip(parts, whole.rows(database)[0], strict=True))


def scalar(expression: Expression, rows: QuerySet[Any]) -> Statement:
    """Return a query for the value of an expression that needs no row; ``rows`` only name the database."""
    sql, params = rows.query.get_compiler(rows.db).compile(expression)
    return Statement(f"SELECT {sql}", tuple(params))


def count_query(
    rows: QuerySet[Any], limit: int, conditions: Mapping[str, Q] = NO_CONDITIONS, *, by: str | None = None
) -> Statement:
    """Return a query that counts up to ``limit`` rows, and those that meet each condition, as a JSON array.

    With ``by``, a column, it is an array of ``[value, *counts]`` for each value of the column.
    """
    json_of = JSON[connections[rows.db].vendor]
    flags = {f"is_{name}": ExpressionWrapper(condition, BooleanField()) for name, condition in conditions.items()}
    counted = Statement.part(rows.annotate(**flags).values_list(by or "pk", *flags)[:limit])
    counts = ["COUNT(*)", *(f"COUNT(CASE WHEN {flag} THEN 1 END)" for flag in flags)]
    if by is None:
        array = f"{json_of.values}({', '.join(counts)})"
        return Statement.compose("SELECT {array} FROM ({rows}) AS counted", array=array, rows=counted)
    names = [f"count_{number}" for number in range(len(counts))]
    return Statement.compose(
        "SELECT {array} FROM (SELECT {by}, {counts} FROM ({rows}) AS counted GROUP BY {by}) AS grouped",
        array=f"{json_of.rows}({json_of.values}({', '.join([by, *names])}))",
        counts=", ".join(f"{count} AS {name}" for count, name in zip(counts, names, strict=True)),
        rows=counted,
        by=by,
    )


def rows_query(rows: QuerySet[Any], columns: Mapping[str, Any], database: str) -> Statement:
    """Return a query for a JSON array of arrays with some columns of ``rows``, each an expression by its name."""
    annotated = rows.annotate(**{f"c_{name}": column for name, column in columns.items()})
    return Statement.compose(
        "SELECT {json_rows}({json_values}({names})) FROM ({rows}) AS listed",
        json_rows=JSON[connections[database].vendor].rows,
        json_values=JSON[connections[database].vendor].values,
        names=", ".join(f"c_{name}" for name in columns),
        rows=Statement.part(annotated.values_list(*(f"c_{name}" for name in columns))),
    )


def decode_rows(listed: Any) -> list[Any]:
    """Decode the answer of :func:`rows_query` or :func:`count_query`."""
    return (json.loads(listed) if isinstance(listed, str | bytes) else listed) or []
