"""The columns that decide whether an action applies to a task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ...db.now import Now
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.transitions import TaskQuerySet
from .task_states import State, state_of


class Candidate(NamedTuple):
    """The columns of a task and the database's time when they were read."""

    id: UUID
    status: str
    task_name: str
    backend: str
    workflow_id: UUID | None
    enqueued_at: datetime
    next_retry_at: datetime | None
    good_until: datetime | None
    group_key: str | None
    claim: int
    now: datetime

    @property
    def state(self) -> State | str:
        """The state of the task."""
        return state_of(self, self.now)

    @property
    def is_past_deadline(self) -> bool:
        """Whether its deadline has passed."""
        return self.good_until is not None and self.good_until <= self.now

    @property
    def is_engine_task(self) -> bool:
        """Whether it is an internal task of the workflow engine."""
        return self.task_name.startswith(ENGINE_TASK_PREFIX)


def candidates(rows: TaskQuerySet) -> Iterator[Candidate]:
    """Yield a candidate for each row, the newest first. Takes one statement."""
    columns: list[Any] = [*Candidate._fields[:-1], Now()]
    columns[0] = "pk"
    for values in rows.order_by("-pk").values_list(*columns):
        yield Candidate(*values)
