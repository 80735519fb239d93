"""Retention as SQL, because vendors differ in durations and JSON."""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, DurationField, F, Func
from django.db.models.sql.compiler import SQLCompiler

from ..core.option_parsers import LONGEST_DURATION
from ..core.retention import LONGEST
from ..core.status import TaskStatus
from .now import postgres_now, sqlite_now


class RetainedUntil(Func):
    """The database's clock plus a duration of the row; NULL if the duration is NULL or the longest."""

    output_field = DateTimeField()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render ``LEAST``, which ignores NULL and returns the longest duration for it."""
        longest = f"INTERVAL '{LONGEST.days} days'"
        template = f"({postgres_now()} + NULLIF(LEAST(%(expressions)s, {longest}), {longest}))"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render microseconds, and the text form of Django's own Now()."""
        seconds = f"(NULLIF(MIN(%(expressions)s, {_MICROSECONDS}), {_MICROSECONDS}) / 1e6) || ' seconds'"
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', {sqlite_now()}, {seconds})"
        return self.as_sql(compiler, connection, template=template)


_MICROSECONDS: Final = LONGEST_DURATION * 1_000_000


class RetentionOfState(Func):
    """The retention of one state in ``retention_by_state``; NULL unless it is a number in range."""

    output_field = DurationField()

    def __init__(self, status: TaskStatus) -> None:
        super().__init__(F("retention_by_state"), key=status.lower())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render a JSON path, which ignores wrong types, and cast only numbers in range."""
        path = f"'strict $.%(key)s ? (@ >= 0 && @ <= {LONGEST_DURATION})'"
        fragment = f"jsonb_path_query_first(%(expressions)s, {path}, '{{}}', true)"
        return self.as_sql(compiler, connection, template=f"make_interval(secs => ({fragment})::float8)")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render a check for valid JSON first. A text compares above any number."""
        value = "JSON_EXTRACT(%(expressions)s, '$.%(key)s')"
        is_number = "JSON_TYPE(%(expressions)s, '$.%(key)s') IN ('integer', 'real')"
        seconds = f"CASE WHEN {is_number} AND {value} BETWEEN 0 AND {LONGEST_DURATION} THEN {value} END"
        template = f"CASE WHEN JSON_VALID(%(expressions)s) THEN CAST(ROUND(({seconds}) * 1e6) AS INTEGER) END"
        return self.as_sql(compiler, connection, template=template)
