"""The columns that a claim, a start and a success read or change, for querysets and for compiled statements."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db import models
from django.db.models import F, TextField
from django.db.models.functions import Cast, Greatest

from ...core.status import TaskStatus
from ...db.expressions import NowPlus, Param, SecondsUntil, ValueByPk
from ...db.now import Now
from ..claims import Completion
from ..retention import kept_until


def _text(column: str) -> Cast:
    """Return a column as text, so that a damaged value does not fail the claim of other rows."""
    return Cast(column, TextField())


CLAIMED_COLUMNS: Final[tuple[Any, ...]] = (
    "pk",
    "task_name",
    "queue_name",
    "backend",
    "priority",
    _text("args"),
    _text("kwargs"),
    "typed_payload",
    F("claim") + 1,
    F("attempt") + 1,
    "retry_count",
    "max_retries",
    _text("retry_policy"),
    "is_async",
    _text("metadata"),
    _text("enqueued_at"),
    "timeout",
    "retention",
    "workflow_id",
    "has_inputs",
    "limit_key",
    "about_model",
    "about_id",
    SecondsUntil("good_until"),
)

#: The columns that the start of a task changes.
START_COLUMNS: Final[dict[str, Any]] = {"started_at": Now(), "attempt": F("attempt") + 1}


def claim_columns(worker_id: str) -> dict[str, Any]:
    """Return the columns that a claim changes."""
    return {
        "claimed_at": Now(),
        "claimed_by_worker_id": worker_id,
        "claim": F("claim") + 1,
        "next_retry_at": None,
    }


def body_start(seconds: Mapping[UUID, str] | Param) -> Greatest:
    """Return when a function began, from :func:`seconds_since_start`: never before its claim."""
    began = NowPlus(ValueByPk(seconds, models.FloatField()))
    return Greatest(began, F("claimed_at"), output_field=models.DateTimeField())


def seconds_since_start(ends: Iterable[Completion]) -> list[str]:
    """Return how long ago each function began by the monotonic clock, as negative seconds."""
    now = time.monotonic()
    return [f"{min(end.began - now, 0.0):.6f}" for end in ends]


def completion_columns(
    results: Mapping[UUID, str] | Param, seconds: Mapping[UUID, str] | Param, database: str
) -> dict[str, Any]:
    """Return the columns that a success changes."""
    return {
        "started_at": body_start(seconds),
        "result": ValueByPk(results, models.JSONField()),
        "error_code": None,
        "fingerprint": None,
        "completed_at": Now(),
        "kept_until": kept_until(TaskStatus.COMPLETED, database),
    }
