"""``TaskRun``: a run of a task, as its context and its input resolvers use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..core.exceptions import TaskInterrupt
from ..core.options import Options
from ..models.claims import ClaimedTask, WorkerInfo, metadata_of


@dataclass(eq=False, slots=True)
class TaskRun(ABC):
    """The state of a run. ``state`` is what ``context.save()`` stored last, encoded; ``progress`` is JSON."""

    claim: ClaimedTask
    options: Options
    runner: WorkerInfo
    stop_reason: type[TaskInterrupt] | None = None
    state: Any = None
    progress: str | None = None
    is_atomic: bool = False  # the end of the task is part of the transaction in which its function runs
    _metadata: dict[str, Any] | None = None

    @property
    def task_id(self) -> UUID:
        """The id of the task's row."""
        return self.claim.task_id

    @property
    def database(self) -> str:
        """The alias of the queue's database."""
        return self.options.database

    @property
    @abstractmethod
    def is_typed(self) -> bool:
        """Whether the values of the row carry type tags."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata, the same dict each time."""
        if self._metadata is None:
            self._metadata = metadata_of(self.claim)
        return self._metadata

    def request_stop(self, reason: type[TaskInterrupt]) -> None:
        """Ask the function to stop at its next checkpoint. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def raise_if_stopping(self) -> None:
        """Raise the reason to stop, if there is one: a checkpoint."""
        if self.stop_reason is not None:
            raise self.stop_reason

    @abstractmethod
    def store_columns(self, **columns: Any) -> bool:
        """Store columns of the task's row; return whether the run still holds it."""
