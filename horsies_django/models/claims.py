"""The values that pass between a worker and the rows that it has claimed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from ..core.results import TaskError
from ..core.serialization import clean_text, dumps
from ..core.status import StepStatus
from .attempt import AttemptError

#: The queue of a task, and whether it is async.
TaskRoute: TypeAlias = tuple[str, bool]


class ClaimLost(Exception):
    """A row was locked but could not be claimed.

    A transaction has to roll back; without one, it is unknown which rows were claimed.
    """


def raise_unless_all_claimed(claimed: int, locked: int) -> None:
    """Raise :class:`ClaimLost` if fewer rows were claimed than were locked."""
    if claimed != locked:
        raise ClaimLost


class ClaimRef(Protocol):
    """The id and claim number with which a worker changes a row that it has claimed."""

    @property
    def task_id(self) -> UUID:
        """The id of the row."""

    @property
    def claim(self) -> int:
        """The number that the row had when it was claimed."""


class ClaimedTask(NamedTuple):
    """The columns of a claimed row that an execution needs. JSON is still text, and ``enqueued_at`` is as well.

    ``start_deadline`` is the time of this process's monotonic clock, in seconds, at which ``good_until`` passes.
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
    enqueued_at: str
    timeout: float | None
    retention: timedelta | None
    workflow_id: UUID | None
    has_inputs: bool
    limit_key: str | None = None
    about_model: str | None = None
    about_id: str | None = None
    start_deadline: float | None = None

    def __repr__(self) -> str:
        # Without the payload, because error trackers collect the repr() of local variables.
        return f"ClaimedTask({str(self.task_id)!r}, {self.task_name!r}, claim={self.claim}, attempt={self.attempt})"


def claimed_tasks(rows: Iterable[Iterable[Any]], asked_at: float) -> list[ClaimedTask]:
    """Return claimed tasks from rows whose last column is the seconds until ``good_until`` by the database's clock.

    ``asked_at`` is the time of the monotonic clock before the statement was sent. So ``start_deadline`` is never later
    than ``good_until``, whatever the difference of the clocks and the duration of the statement.
    """
    claims = [ClaimedTask._make(row) for row in rows]
    return [
        claim if claim.start_deadline is None else claim._replace(start_deadline=asked_at + claim.start_deadline)
        for claim in claims
    ]


#: Maximum characters of a step's name, with the prefix of its kind.
NAME_LENGTH: Final = 255

#: The start of what a task waits for: before the name of an event, and before the id of a workflow or a batch.
EVENT_WAIT: Final = "event:"
WORKFLOW_WAIT: Final = "workflow:"

#: Maximum characters of an event's name: with its prefix, it is the name of a step.
EVENT_NAME_LENGTH: Final = NAME_LENGTH - len(EVENT_WAIT)


def check_event_name(name: object) -> None:
    """Raise ValueError unless this may be the name of an event."""
    if not isinstance(name, str) or not 0 < len(name) <= EVENT_NAME_LENGTH or name != clean_text(name):
        raise ValueError(f"The name of an event is {name!r}; allowed: a text of 1 to {EVENT_NAME_LENGTH} characters.")


#: Seconds after which a wait without a timeout goes on at the latest: a hundred years.
FOREVER: Final = 100 * 365 * 86_400.0


@dataclass(slots=True)
class StepRecord:
    """One record. ``result`` is the JSON text of a TaskResult; ``due_in`` are seconds, negative once they have passed.

    ``position`` is its place in the order of the body, None while it waits or is unread. ``attempt`` is the
    number of the task's attempt that wrote it; ``seconds`` is how long it took.
    """

    name: str
    number: int
    kind: str
    status: str
    result: str | None = None
    attempts: int = 1
    attempt: int = 0
    position: int | None = None
    due_in: float | None = None
    seconds: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the time of a wait has passed."""
        return self.status == StepStatus.WAITING and self.due_in is not None and self.due_in <= 0.0

    @property
    def label(self) -> str:
        """The name and, if it is not the first of that name, the number."""
        return self.name if self.number == 1 else f"{self.name} #{self.number}"


class Completion(NamedTuple):
    """The outcome of one execution: an ok or err ``result`` as JSON text, and the ``error`` if it failed.

    ``began`` is the time of this process's monotonic clock, in seconds, at which the function began: infinite if it
    never did, 0 if that is unknown.

    ``delay`` is the number of seconds until the task runs again, None if it has ended. A retry has an ``error``, a
    snooze has none. A task that ``waits_for`` something snoozes until then, for ``delay`` at the latest. One that
    restarts has new values of columns. The deadline of one that ``has_records`` no longer applies. A retry that is not
    ``is_charged`` uses up none of the task's retries: the worker failed. A task that is handed back to a worker with
    other code has no error either: ``unknown_to`` is then the new value of that column, as JSON text.
    """

    task_id: UUID
    claim: int
    result: str
    error: AttemptError | None = None
    delay: float | None = None
    unknown_to: str | None = None
    waits_for: str | None = None
    restart: Mapping[str, str] | None = None
    is_charged: bool = True
    has_records: bool = False
    began: float = 0.0

    def __repr__(self) -> str:
        # Without the result, as for ClaimedTask.
        return f"Completion({str(self.task_id)!r}, claim={self.claim}, error={self.error}, delay={self.delay})"

    @property
    def is_success(self) -> bool:
        """Whether the task returned a value."""
        return self.error is None and self.delay is None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker process that ran an attempt."""

    worker_id: str
    hostname: str
    pid: int | None


def error_result(code: str, message: str, data: Any = None) -> str:
    """Return the JSON text of an err result."""
    return dumps({"err": TaskError(error_code=code, message=message, data=data).as_json()})


def metadata_of(claimed: ClaimedTask) -> dict[str, Any]:
    """Return a task's metadata; an empty dict if the row holds anything but a dict."""
    stored = {} if claimed.metadata is None else json.loads(claimed.metadata)
    return stored if isinstance(stored, dict) else {}
