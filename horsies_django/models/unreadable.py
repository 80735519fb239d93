"""Unreadable rows: how they are found and failed, so that they do not block other rows.

A claim returns only values that Python can read: a date or a duration out of bounds comes as NULL, and ``IS_READABLE``
is false. The finder of such a row fails it with ``WORKER_ROW_UNREADABLE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import Case, F, Q, When
from django.db.models.functions import Cast

from ..core.bounds import RETENTION, TIMEOUT, Range, clamp, in_range, out_of_range
from ..core.results import OperationalCode
from ..core.serialization import clean_text
from ..core.status import TaskStatus
from ..db.expressions import IsInRange
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


IS_READABLE: Final = IsInRange(DATES, NUMBERS)

#: Waiting rows that no claim finds, as far as an index contains them: they are never due, or after the last year.
IS_NEVER_CLAIMABLE: Final = Q(
    Q(out_of_range(["enqueued_at"]), status=TaskStatus.PENDING, deferred=True, blocked=False)
    | Q(out_of_range(["good_until"]), status=TaskStatus.PENDING, good_until__isnull=False)
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
        "horsies_task_dates_are_in_range": in_range(DATES),
        "horsies_task_numbers_are_in_range": Q(**most) & in_range((), {"timeout": TIMEOUT, "retention": RETENTION}),
    }


def values_in_range(model: type[models.Model]) -> dict[str, Any]:
    """Return the values that clamp every column of a row to its range; the others do not change.

    A retention out of range becomes NULL, so that the row stays visible.
    """
    values = {field.name: clamp(field, NUMBERS) for field in model._meta.concrete_fields}
    kept = Case(When(in_range((), {"retention": RETENTION}), then=F("retention")))
    return {name: value for name, value in values.items() if value is not None} | {"retention": kept}


def error_results(rows: models.QuerySet[Any], why: str) -> dict[UUID, str]:
    """Return the err result of each of these rows, as JSON text: it names the values out of range, or says ``why``."""
    columns = [*DATES, *NUMBERS]
    texts = [
        Case(
            When(out_of_range(*_bounds_of(name)), then=Cast(name, models.TextField())), output_field=models.TextField()
        )
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
