"""``TaskRun``: a run of a task, as its context and its input resolvers use it, and ``LocalRun``, one without a row."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone

from ..core.compat import FrameworkTask
from ..core.exceptions import TaskInterrupt
from ..core.options import Options
from ..core.registry import name_of
from ..core.results import OperationalCode, TaskError
from ..core.serialization import clean_text, dumps, encode
from ..core.status import StepStatus
from ..db.clock import database_now
from ..models.claims import ClaimedTask, StepRecord, WorkerInfo, metadata_of

if TYPE_CHECKING:
    from ..core.output import OutputBuffer
    from ..steps.replay import Replay


@dataclass(eq=False, slots=True)
class TaskRun(ABC):
    """The state of a run. ``state`` is what ``context.save()`` stored last, encoded; ``progress`` is JSON."""

    claimed: ClaimedTask
    options: Options
    runner: WorkerInfo
    stop_reason: type[TaskInterrupt] | None = None
    state: Any = None
    progress: str | None = None
    output: OutputBuffer | None = None  # None: nothing of it is kept
    may_replay: bool = False  # an earlier run has recorded something
    is_atomic: bool = False  # the end of the task is part of the transaction in which its function runs
    decided: BaseException | None = None  # how the run ends, whatever its function returns or raises
    make_error: Callable[[Exception], TaskError[Any]] | None = None  # the error of the task if its function raised this
    _replay: Replay | None = None
    _metadata: dict[str, Any] | None = None

    @property
    def task_id(self) -> UUID:
        """The id of the task's row."""
        return self.claimed.task_id

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
            self._metadata = metadata_of(self.claimed)
        return self._metadata

    @property
    def has_replay(self) -> bool:
        """Whether the function has asked for a step."""
        return self._replay is not None

    @property
    def replay(self) -> Replay:
        """What the run has recorded."""
        if self._replay is None:
            from ..steps.replay import Replay  # here: few tasks have steps

            self._replay = Replay(self)
        return self._replay

    @property
    def unsaved_output(self) -> OutputBuffer | None:
        """The output, if something in it has to be saved."""
        return self.output if self.output is not None and self.output.has_unsaved else None

    @property
    def is_replaying(self) -> bool:
        """Whether the function has yet to come to the end of what earlier runs have recorded."""
        return self.may_replay if self._replay is None else self._replay.is_replaying

    def has_time(self, seconds: float) -> bool:
        """Whether the function may go on for so long."""
        return True

    def is_in_body(self) -> bool:
        """Whether the caller is in the function's own thread or asyncio task."""
        return True

    def error_of(self, raised: Exception) -> TaskError[Any]:
        """Return the error that the task would have if its function raised this."""
        if self.make_error is not None:
            return self.make_error(raised)
        kind = type(raised)
        exception = {"type": f"{kind.__module__}.{kind.__qualname__}", "message": clean_text(str(raised))}
        code = OperationalCode.UNHANDLED_EXCEPTION
        return TaskError(error_code=code, message=exception["message"], exception=exception)

    def now(self) -> datetime:
        """Return the time by the clock of the database."""
        return database_now(self.database)

    @abstractmethod
    def lock_on_sqlite(self) -> None:
        """Begin to write: SQLite can't turn a reader into the writer once another connection has written."""

    @abstractmethod
    def read_steps(self) -> list[StepRecord]:
        """Return the records of earlier runs."""

    @abstractmethod
    def write_step(self, record: StepRecord) -> bool:
        """Write a record; return whether the run still holds its row, and the record may change."""

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


#: The worker of such a run.
LOCAL_WORKER = WorkerInfo("local", "local", None)


@dataclass(eq=False, slots=True)
class LocalRun(TaskRun):
    """A run in this process that keeps progress and state in memory."""

    runner: WorkerInfo = LOCAL_WORKER
    is_typed: bool = False

    recorded: dict[tuple[str, int], StepRecord] = field(default_factory=dict)

    def now(self) -> datetime:
        """Return the time by this machine's clock."""
        return timezone.now()

    def lock_on_sqlite(self) -> None:
        """Do nothing: there is no row."""

    def store_columns(self, **columns: Any) -> bool:
        """Do nothing: there is no row."""
        return True

    def keep(self, record: StepRecord, value: Any) -> None:
        """Keep a record with this value for the run. Raises TypeError or ValueError for one that can't be stored."""
        where = f"the value of {record.label!r}"
        record.result = dumps({"ok": encode(value, typed=self.is_typed, where=where)})
        self.recorded[record.name, record.number] = record

    def read_steps(self) -> list[StepRecord]:
        """Return what was recorded before this run."""
        return list(self.recorded.values())

    def write_step(self, record: StepRecord) -> bool:
        """Keep a record, unless there is an unread event."""
        key = record.name, record.number
        has_event = key in self.recorded and self.recorded[key].status == StepStatus.UNREAD
        if has_event and record.status != StepStatus.COMPLETED:
            return False
        self.recorded[key] = record
        return True


def local_claim(
    task: FrameworkTask[..., Any],
    task_id: UUID,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    attempt: int,
    max_attempts: int,
    is_typed: bool = False,
) -> ClaimedTask:
    """Return the claim of a call that has no row. Arguments and metadata are JSON values."""
    return ClaimedTask(
        task_id=task_id,
        task_name=name_of(task),
        queue_name=task.queue_name,
        backend=task.backend,
        priority=int(task.priority),
        args=dumps(list(args)),
        kwargs=dumps(dict(kwargs)),
        typed_payload=is_typed,
        claim=2,  # so that its steps look for records
        attempt=attempt,
        retry_count=attempt - 1,
        max_retries=max_attempts - 1,
        retry_policy=None,
        is_async=inspect.iscoroutinefunction(task.func),
        metadata=dumps(dict(metadata)) if metadata else None,
        enqueued_at=timezone.now().isoformat(),
        timeout=None,
        retention=None,
        workflow_id=None,
        has_inputs=False,
    )
