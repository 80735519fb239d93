"""The comparison of the real rows with the model's.

Times of the model are whole steps; a real time may differ by the time that the example has taken so far.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from horsies_django.models import Task, TaskAttempt

from .model import ENDED_AT, Model, Row

#: How far a stored time may be from the model's: less than half a step. An example takes half a second if it is quiet.
TOLERANCE = timedelta(seconds=24)
TIMES = ("sent_at", "enqueued_at", "claimed_at", "started_at", "next_retry_at", "good_until", "kept_until")


def compare(model: Model) -> None:
    """Compare every row, attempt and time."""
    now = timezone.now()
    stored = {row.pk: row for row in Task.objects.all()}
    assert stored.keys() == model.rows.keys()
    attempts: dict[UUID, dict[int, tuple[str, bool, str]]] = {key: {} for key in stored}
    for attempt in TaskAttempt.objects.all():
        assert attempt.attempt not in attempts[attempt.task_id]
        attempts[attempt.task_id][attempt.attempt] = (attempt.outcome, attempt.will_retry, attempt.error_code)
    for key, row in model.rows.items():
        assert _seen(stored[key]) | {"attempts": attempts[key]} == _expected(row)
        for name, moment in _times(row).items():
            off = None if moment is None else timedelta(seconds=moment - model.now)
            _compare_time(name, getattr(stored[key], name), off, now)


def _seen(row: Task) -> dict[str, Any]:
    return {
        "status": str(row.status),
        "claim": row.claim,
        "worker": row.claimed_by_worker_id,
        "attempt": row.attempt,
        "retry_count": row.retry_count,
        "max_retries": row.max_retries,
        "error_code": row.error_code,
        "unique_key": row.unique_key,
        "result": None if row.result is None else next(iter(row.result)),
        "error_in_result": (row.result or {}).get("err", {}).get("error_code"),
    }


def _expected(row: Row) -> dict[str, Any]:
    kind = "ok" if row.status == "COMPLETED" else "err"
    return {
        "status": row.status,
        "claim": row.claim,
        "worker": row.worker,
        "attempt": row.attempt,
        "retry_count": row.retry_count,
        "max_retries": len(row.delays),
        "error_code": row.error_code,
        "unique_key": row.unique_key,
        "result": kind if row.has_result else None,
        "error_in_result": row.error_code if row.has_result else None,
        "attempts": row.attempts,
    }


def _times(row: Row) -> dict[str, int | None]:
    ends = {name: row.ended_at if row.status == status else None for status, name in ENDED_AT.items()}
    return {name: getattr(row, name) for name in TIMES} | ends


def _compare_time(name: str, stored: datetime | None, moment: timedelta | None, now: datetime) -> None:
    assert (stored is None) == (moment is None), f"{name}: {stored} but {moment} in the model"
    if stored is not None and moment is not None:
        off = stored - now - moment
        assert abs(off) < TOLERANCE, f"{name} is off by {off}"
