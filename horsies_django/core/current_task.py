"""What the calling code runs in: a task (``current_task()``), the body of an atomic one, a step, or a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID


class ClaimedRow(Protocol):
    """What a run knows of its row."""

    @property
    def task_id(self) -> UUID:
        """The id of the row."""

    @property
    def task_name(self) -> str:
        """The name of the task."""

    @property
    def queue_name(self) -> str:
        """The queue."""

    @property
    def attempt(self) -> int:
        """The number of the attempt."""

    @property
    def workflow_id(self) -> UUID | None:
        """The workflow, if the task is one of its nodes."""


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The task that runs. ``workflow_id`` is that of the workflow whose node it is; ``attempt`` counts from 1."""

    id: UUID
    name: str
    queue_name: str
    attempt: int
    workflow_id: UUID | None


#: The run whose code this is: an execution of a worker, or None.
current_run: Final[ContextVar[Any]] = ContextVar("horsies_current_run", default=None)


def current_task() -> CurrentTask | None:
    """Return the task that runs in this thread or asyncio task; None outside of tasks, and in threads of their own."""
    run = current_run.get()
    if run is None:
        return None
    row: ClaimedRow = run.claimed
    return CurrentTask(row.task_id, row.task_name, row.queue_name, row.attempt, row.workflow_id)


def atomic_task_id() -> UUID | None:
    """Return the id of the task in whose atomic body the calling code runs; None elsewhere."""
    run = current_run.get()
    return run.claimed.task_id if run is not None and run.is_atomic else None


def log_attributes(row: ClaimedRow | None) -> dict[str, Any]:
    """Return what each log record of a task has as its attributes; None for each without a task."""
    if row is None:
        return dict.fromkeys(LOG_ATTRIBUTES)
    workflow = None if row.workflow_id is None else str(row.workflow_id)
    values = str(row.task_id), row.task_name, row.queue_name, row.attempt, workflow
    return dict(zip(LOG_ATTRIBUTES, values, strict=True))


#: The names of these attributes.
LOG_ATTRIBUTES: Final = ("task_id", "task_name", "queue", "attempt", "workflow_id")


_IS_DRY: Final[ContextVar[bool]] = ContextVar("horsies_dry", default=False)


@contextmanager
def dry_run() -> Iterator[None]:
    """Insert nothing that this block sends. The handles in it belong to tasks that don't exist."""
    token = _IS_DRY.set(True)
    try:
        yield
    finally:
        _IS_DRY.reset(token)


#: Returns whether this code is in a dry run.
is_dry_run: Final = _IS_DRY.get


_OPEN_STEP: Final[ContextVar[tuple[str, tuple[str, int] | None] | None]] = ContextVar("horsies_open_step", default=None)

#: Returns the step in which this code runs, with its name and number, or the turn; None outside of any.
open_step: Final = _OPEN_STEP.get


@contextmanager
def inside_step(what: str, key: tuple[str, int] | None = None) -> Iterator[None]:
    """Run this block as a step, in which no other may begin."""
    token = _OPEN_STEP.set((what, key))
    try:
        yield
    finally:
        _OPEN_STEP.reset(token)
