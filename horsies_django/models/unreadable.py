"""Unreadable rows: how they are found and failed, so that they do not block other rows.

A claim returns only values that Python can read: a date or a duration out of bounds comes as NULL, and ``IS_READABLE``
is false. The finder of such a row fails it with ``WORKER_ROW_UNREADABLE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, Func, Q, Value, When
from django.db.models.functions import Cast
from django.db.models.sql.compiler import SQLCompiler

from ..core.bounds import RETENTION, TIMEOUT, Range, beyond, bounds_of_dates, clamped, within
from ..core.results import OperationalCode
from ..core.serialization import clean_text
from ..core.status import TaskStatus
from .claims import error_result

#: The date columns whose values users choose.
DATES: Final = ("enqueued_at", "run_after", "good_until")

#: The ranges of numeric columns. ``claim`` and ``attempt`` grow by one, so only manual changes come near the bounds.
NUMBERS: Final[Mapping[str, Range]] = {
    "claim": (0, 2**62),
    "attempt": (0, 10**9),
    "timeout": TIMEOUT,
    "retention": RETENTION,
}


class IsReadable(Func):
    """Whether a row is within its bounds; never NULL.

    On PostgreSQL it is kept short, because the driver parses a statement of more than 4,096 characters again each time
    it runs.
    """

    output_field = models.BooleanField()

    def __init__(self) -> None:
        is_within = Case(When(beyond(DATES, NUMBERS), then=Value(False)), default=Value(True))
        super().__init__(is_within, *map(F, (*DATES, *NUMBERS)))

    def as_sql(  # type: ignore[override]  # a template has no place here
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any
    ) -> tuple[str, Any]:
        """The bounds one by one."""
        return compiler.compile(self.get_source_expressions()[0])

    def as_postgresql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """``LEAST`` and ``GREATEST`` pass over NULL, and NaN is above any number."""
        columns = dict(zip((*DATES, *NUMBERS), self.get_source_expressions()[1:], strict=True))
        names = {name: compiler.compile(column)[0] for name, column in columns.items()}
        dates = ", ".join(names[name] for name in DATES)
        numbers = [f"coalesce({names[name]} BETWEEN %s AND %s, true)" for name in NUMBERS]
        first, last = bounds_of_dates()
        sql = " AND ".join([f"least({dates}) >= %s", f"greatest({dates}) < %s", *numbers])
        return f"({sql})", (first, last, *chain.from_iterable(NUMBERS.values()))


IS_READABLE: Final = IsReadable()

#: Waiting rows that no claim finds, as far as an index contains them: they are never due, or after the last year.
IS_NEVER_CLAIMABLE: Final = Q(
    Q(beyond(["enqueued_at"]), status=TaskStatus.PENDING, deferred=True, blocked=False)
    | Q(beyond(["good_until"]), status=TaskStatus.PENDING, good_until__isnull=False)
)

#: Characters of a value that an error shows.
_MAX_VALUE_LENGTH: Final = 100


def range_conditions() -> dict[str, Q]:
    """Return the conditions of the check constraints, by name.

    They are short, because PostgreSQL parses them again in each statement that writes. The fields of ``claim`` and
    ``attempt`` reject negative values themselves.
    """
    most = {f"{name}__lte": NUMBERS[name][1] for name in ("claim", "attempt")}
    return {
        "horsies_task_dates_are_in_range": within(DATES),
        "horsies_task_numbers_are_in_range": Q(**most) & within((), {"timeout": TIMEOUT, "retention": RETENTION}),
    }


def values_in_range(model: type[models.Model]) -> dict[str, Any]:
    """Return the values that clamp every column of a row to its range; the others do not change.

    A retention out of range becomes NULL, so that the row stays visible.
    """
    values = {field.name: clamped(field, NUMBERS) for field in model._meta.concrete_fields}
    kept = Case(When(within((), {"retention": RETENTION}), then=F("retention")))
    return {name: value for name, value in values.items() if value is not None} | {"retention": kept}


def error_results(rows: models.QuerySet[Any], why: str) -> dict[UUID, str]:
    """Return the err result of each of these rows, as JSON text: it names the values out of range, or says ``why``."""
    columns = [*DATES, *NUMBERS]
    texts = [
        Case(When(beyond(*_bounds_of(name)), then=Cast(name, models.TextField())), output_field=models.TextField())
        for name in columns
    ]
    return {
        key: error_result(OperationalCode.WORKER_ROW_UNREADABLE, clean_text(_describe(columns, values) or why))
        for key, *values in rows.values_list("pk", *texts)
    }


def _bounds_of(name: str) -> tuple[tuple[str, ...], dict[str, Range]]:
    return ((name,), {}) if name in DATES else ((), {name: NUMBERS[name]})


def _describe(columns: list[str], values: list[str | None]) -> str:
    parts = [
        f"{name} is {value[:_MAX_VALUE_LENGTH]}"
        for name, value in zip(columns, values, strict=True)
        if value is not None
    ]
    return f"The row has values out of range: {', '.join(parts)}." if parts else ""
