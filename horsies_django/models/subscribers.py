"""The functions above ``models`` that models call: they subscribe when the app is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from django.dispatch import Signal

from ..core.results import TaskError, TaskResult

# Each takes rows: a queryset of tasks, or a Schedule. Their classes are above this module.
FollowNodes: TypeAlias = Callable[[Any], AbstractContextManager[None]]
RetryNodes: TypeAlias = Callable[[Any], int]
SendEnded: TypeAlias = Callable[[Signal, str, Sequence[UUID]], None]
ScheduleProblems: TypeAlias = Callable[[Any], Mapping[str, list[str]]]
RunSchedule: TypeAlias = Callable[[Any], "RunHandle"]


class RunHandle(Protocol):
    """The handle of what a schedule has sent: a TaskHandle, or a WorkflowHandle."""

    @property
    def id(self) -> UUID:
        """The id of the task, or of the workflow."""

    @property
    def replayed(self) -> bool:
        """Whether a live run with the same unique key stands in for a new one."""

    def status(self) -> Any:
        """Return the status now."""

    def get(self, timeout: float | None = None) -> TaskResult[Any, TaskError[Any]]:
        """Wait for the end, at most ``timeout`` seconds, and return the result."""


@dataclass(slots=True)
class Subscribers:
    """The functions that models call. To call one before the app is ready raises AttributeError."""

    #: Wraps a block that ends tasks: the workflows of those that are nodes advance in the same transaction.
    follow_nodes: FollowNodes = field(init=False)

    #: Retries the nodes of failed tasks in their workflows; returns how many.
    retry_nodes: RetryNodes = field(init=False)

    #: Sends a signal for each of these tasks of a database, once the current transaction has committed.
    send_ended: SendEnded = field(init=False)

    #: Returns the errors of a Schedule, as sentences by column. Sends nothing.
    schedule_problems: ScheduleProblems = field(init=False)

    #: Sends a run of a Schedule now, and stores the run in its row.
    run_schedule: RunSchedule = field(init=False)


subscribers: Final = Subscribers()
