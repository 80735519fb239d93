"""The check constraint of each table: Python can read every value."""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import (
    BigIntegerField,
    BooleanField,
    CheckConstraint,
    DateTimeField,
    DurationField,
    F,
    FloatField,
    Func,
    IntegerField,
    JSONField,
    Q,
    UUIDField,
)
from django.db.models.sql.compiler import SQLCompiler

from ..core.option_parsers import LONGEST_DURATION

#: PostgreSQL stores times from 4713 BC to 294276, and infinite ones. Every time zone can show these.
_TIMES: Final = "'[1899-01-01 00:00+00,9999-01-01 00:00+00)'::tstzrange @> ALL (ARRAY[{}]::timestamptz[])"

#: NaN is above any number.
_ON_POSTGRESQL: Final = {
    FloatField: f"{{0}} BETWEEN '0' AND '{LONGEST_DURATION}'",
    DurationField: f"{{0}} BETWEEN '0' AND '{LONGEST_DURATION} s'",
    JSONField: """{0}::text ~ '^[{{]("-?[0-9]+": [0-9]+(, )?)*[}}]$'""",
}

#: SQLite stores any type in any column. Its time is the text that Django writes; the sum refuses 30 February. Django
#: reads the SQL of a table in parts between a comma and a space, so these have none.
_ON_SQLITE: Final = {
    DateTimeField: (
        "({0} IS NULL OR {0} BETWEEN '1899-01-01' AND '9999-01-01' AND julianday({0})"
        " AND datetime(substr({0},1,19),'+0 days') IS substr({0},1,19))"
    ),
    FloatField: f"{{0}} BETWEEN 0 AND {LONGEST_DURATION}",
    DurationField: f"{{0}} BETWEEN 0 AND {LONGEST_DURATION * 10**6}",
    BigIntegerField: "typeof({0}) IN ('integer','null')",
    IntegerField: "{0} BETWEEN -2147483648 AND 2147483647",
    BooleanField: "{0} IN (0,1)",
    JSONField: """(json_type({0}) = 'object' AND {0} NOT GLOB '*[^-0-9":,{{}} ]*' AND {0} NOT GLOB '*:*{{*')""",
    UUIDField: "(length({0}) = 32 AND {0} NOT GLOB '*[^0-9a-f]*')",
}


class AreReadable(Func):
    """Whether columns are NULL or within the range of their type.

    The types are times, seconds (a FloatField), durations, and histograms (a JSONField) that map whole numbers to whole
    numbers. On SQLite, integers, booleans and UUIDs are checked too: it stores any type in any column. ``columns`` are
    names with spaces between them.

    Keep it short: PostgreSQL parses it in each statement that writes.
    """

    output_field = BooleanField()

    def __init__(self, columns: str) -> None:
        super().__init__(*map(F, columns.split()))

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Check all times with one operator, which takes less to parse than two comparisons of each."""
        columns = self.get_source_expressions()
        times = [compiler.compile(column) for column in columns if isinstance(column.output_field, DateTimeField)]
        sql, params = self._check(compiler, _ON_POSTGRESQL)
        in_range = _TIMES.format(", ".join(time for time, _ in times))
        return " AND ".join([in_range, *sql]), (*(param for _, values in times for param in values), *params)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Check each column."""
        sql, params = self._check(compiler, _ON_SQLITE)
        return " AND ".join(sql), tuple(params)

    def _check(self, compiler: SQLCompiler, conditions: dict[Any, str]) -> tuple[list[str], list[Any]]:
        sql: list[str] = []
        params: list[Any] = []
        for column in self.get_source_expressions():
            kinds = (
                kind
                for kind in conditions
                if isinstance(getattr(column.output_field, "target_field", column.output_field), kind)
            )
            if (kind := next(kinds, None)) is not None:
                name, values = compiler.compile(column)
                sql.append(conditions[kind].format(name))
                params += [*values] * conditions[kind].count("{0}")
        return sql, params


def values_in_range(table: str, columns: str, **ranges: tuple[float, float]) -> CheckConstraint:
    """Return the constraint of a table for the columns of :class:`AreReadable`, and for others with their ranges."""
    in_ranges = {f"{column}__range": values for column, values in ranges.items()}
    return CheckConstraint(condition=Q(AreReadable(columns), **in_ranges), name=f"horsies_{table}_is_in_range")
