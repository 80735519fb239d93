"""Rows that nobody can read: which those are, and how they end, so that they don't stop their neighbours.

A claim reads only what Python can read, whatever a row holds: a date or a duration beyond its bounds comes as NULL, and
``IS_READABLE`` says so. Who finds such a row ends it with ``WORKER_ROW_UNREADABLE``.
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

#: What a sender, an operator or a body chooses, by the columns that it ends up in.
DATES: Final = ("enqueued_at", "run_after", "good_until")

#: ``claim`` and ``attempt`` grow by one at a time: nothing comes near these but by hand.
NUMBERS: Final[Mapping[str, Range]] = {
    "claim": (0, 2**62),
    "attempt": (0, 10**9),
    "timeout": TIMEOUT,
    "retention": RETENTION,
}


class IsReadable(Func):
    """Whether a row is within its bounds; never NULL.

    On PostgreSQL it is written as shortly as can be: the driver takes a statement of more than 4,096 characters apart
    anew each time it runs.
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

#: Waiting rows that no claim would come upon, as far as an index has them: they are due never, or beyond the last year.
IS_NEVER_CLAIMABLE: Final = Q(
    Q(beyond(["enqueued_at"]), status=TaskStatus.PENDING, deferred=True, blocked=False)
    | Q(beyond(["good_until"]), status=TaskStatus.PENDING, good_until__isnull=False)
)

#: Characters of a value that an error tells.
_MAX_VALUE_LENGTH: Final = 100


def range_conditions() -> dict[str, Q]:
    """Return the conditions of the check constraints, by their names.

    They are short, for PostgreSQL takes them apart anew in each statement that writes: the fields of ``claim`` and
    ``attempt`` refuse what is below 0 themselves.
    """
    most = {f"{name}__lte": NUMBERS[name][1] for name in ("claim", "attempt")}
    return {
        "horsies_task_dates_are_in_range": within(DATES),
        "horsies_task_numbers_are_in_range": Q(**most) & within((), {"timeout": TIMEOUT, "retention": RETENTION}),
    }


def values_in_range(model: type[models.Model]) -> dict[str, Any]:
    """Return what brings every column of a row back into its range; the rest stays as it is.

    A retention counts as none, for the row is to be seen.
    """
    values = {field.name: clamped(field, NUMBERS) for field in model._meta.concrete_fields}
    kept = Case(When(within((), {"retention": RETENTION}), then=F("retention")))
    return {name: value for name, value in values.items() if value is not None} | {"retention": kept}


def error_results(rows: models.QuerySet[Any], why: str) -> dict[UUID, str]:
    """Return the err result of each of these rows, as JSON text: what is out of range in it, or else ``why``."""
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
    return f"The row holds what can't be read: {', '.join(parts)}." if parts else ""
