"""The values that pass between a worker and the rows it holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from ..core.results import TaskError
from ..core.serialization import dumps
from .attempt import AttemptError


class ClaimLost(Exception):
    """Rows changed hands between being locked and being claimed; the whole transaction has to be done anew."""


class ClaimRef(Protocol):
    """What a worker needs to say to change a row that it holds."""

    @property
    def task_id(self) -> UUID:
        """The row."""

    @property
    def claim(self) -> int:
        """The number that the row had when it was claimed."""


class ClaimedTask(NamedTuple):
    """A claimed row, as much of it as running it takes. Its args and kwargs are still JSON text.

    ``begins_by`` is the moment, of this process's monotonic clock, at which its ``good_until`` passes.
    """

    task_id: UUID
    task_name: str
    queue_name: str
    backend: str
    priority: int
    args: str
    kwargs: str
    typed_payload: bool
    claim: int
    attempt: int
    retry_count: int
    max_retries: int
    retry_policy: str | None
    is_async: bool
    metadata: str | None
    enqueued_at: datetime
    timeout: float | None
    retention: timedelta | None
    workflow_id: UUID | None
    has_inputs: bool
    limit_key: str | None = None
    is_readable: bool = True
    begins_by: float | None = None

    def __repr__(self) -> str:
        # Without what it carries: services for errors collect the repr() of each local variable.
        return f"ClaimedTask({str(self.task_id)!r}, {self.task_name!r}, claim={self.claim}, attempt={self.attempt})"


def claims_of(rows: Iterable[Iterable[Any]], asked_at: float) -> list[ClaimedTask]:
    """Return claims from rows that end with the seconds left until ``good_until`` by the database's clock.

    ``asked_at`` is a moment of the monotonic clock from before the statement was sent. So ``begins_by`` is never later
    than ``good_until``, however far the clocks are apart and however long the answer took.
    """
    claims = [ClaimedTask._make(row) for row in rows]
    return [
        claim if claim.begins_by is None else claim._replace(begins_by=asked_at + claim.begins_by) for claim in claims
    ]


@dataclass(frozen=True, slots=True)
class Completion:
    """How one run of a body came out: an ok or err ``result`` as JSON text, an ``error`` if it is one.

    ``again_in`` are the seconds until it runs again, None if it has ended: after a retry with an ``error``, without one
    after a snooze, or when it goes back for a worker of another version: ``unknown_to`` is then what the row says of
    that, as JSON text.
    """

    task_id: UUID
    claim: int
    result: str = field(repr=False)
    error: AttemptError | None = None
    again_in: float | None = None
    unknown_to: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the body came to its end and returned a value."""
        return self.error is None and self.again_in is None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who ran an attempt."""

    worker_id: str
    hostname: str
    pid: int | None


def error_result(code: str, message: str, data: Any = None) -> str:
    """Return the JSON text of an err result."""
    return dumps({"err": TaskError(error_code=code, message=message, data=data).as_json()})


def metadata_of(claim: ClaimedTask) -> dict[str, Any]:
    """Return what came along with a task; nothing where somebody has put something else than a dict into the row."""
    stored = {} if claim.metadata is None else json.loads(claim.metadata)
    return stored if isinstance(stored, dict) else {}
