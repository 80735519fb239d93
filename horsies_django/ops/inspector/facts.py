"""What has to be known of a task to say whether something can be done to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models.functions import Now

from ...models.operator_actions import INTERNAL
from ...models.transitions import TaskQuerySet
from .task_states import State, state_of


class Candidate(NamedTuple):
    """What a row says, and the database's clock as it was read."""

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
        """What it is at."""
        return state_of(self, self.now)

    @property
    def is_past_deadline(self) -> bool:
        """Whether it must not begin any more."""
        return self.good_until is not None and self.good_until <= self.now

    @property
    def is_engine_task(self) -> bool:
        """Whether it is a step of the workflows' engine."""
        return self.task_name.startswith(INTERNAL)


def candidates(rows: TaskQuerySet) -> Iterator[Candidate]:
    """Yield the facts of some rows, the newest first. One statement."""
    columns: list[Any] = [*Candidate._fields[:-1], Now()]
    columns[0] = "pk"
    for values in rows.order_by("-pk").values_list(*columns):
        yield Candidate(*values)
