"""How long a row is kept, as SQL: the vendors differ in durations and in JSON."""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, DurationField, F, Func
from django.db.models.sql.compiler import SQLCompiler

from ..core.option_parsers import LONGEST_DURATION
from ..core.retention import LONGEST
from ..core.status import TaskStatus


class RetainedUntil(Func):
    """The database's clock plus a duration that may differ from row to row; NULL if that is NULL or the longest."""

    output_field = DateTimeField()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """``LEAST`` passes over NULL, and gives the longest then."""
        longest = f"INTERVAL '{LONGEST.days} days'"
        template = f"(STATEMENT_TIMESTAMP() + NULLIF(LEAST(%(expressions)s, {longest}), {longest}))"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """A duration is a number of microseconds; the text form is the one that Django's own Now() has there."""
        seconds = f"(NULLIF(MIN(%(expressions)s, {_MICROSECONDS}), {_MICROSECONDS}) / 1e6) || ' seconds'"
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW', {seconds})"
        return self.as_sql(compiler, connection, template=template)


_MICROSECONDS: Final = LONGEST_DURATION * 1_000_000


class RetentionOfState(Func):
    """What a ``retention_by_state`` says of one state; NULL for anything but a number in range, whatever is stored."""

    output_field = DurationField()

    def __init__(self, status: TaskStatus) -> None:
        super().__init__(F("retention_by_state"), key=status.lower())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """A path is silent about wrong types, and its numbers have no limits: the cast is of one in range."""
        path = f"'strict $.%(key)s ? (@ >= 0 && @ <= {LONGEST_DURATION})'"
        found = f"jsonb_path_query_first(%(expressions)s, {path}, '{{}}', true)"
        return self.as_sql(compiler, connection, template=f"make_interval(secs => ({found})::float8)")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """A text is above any number there, and to read what is no JSON would be an error."""
        value = "JSON_EXTRACT(%(expressions)s, '$.%(key)s')"
        is_number = "JSON_TYPE(%(expressions)s, '$.%(key)s') IN ('integer', 'real')"
        seconds = f"CASE WHEN {is_number} AND {value} BETWEEN 0 AND {LONGEST_DURATION} THEN {value} END"
        template = f"CASE WHEN JSON_VALID(%(expressions)s) THEN CAST(ROUND(({seconds}) * 1e6) AS INTEGER) END"
        return self.as_sql(compiler, connection, template=template)
