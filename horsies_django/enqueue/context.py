"""What a body with ``takes_context=True`` is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.compat import TaskContext as FrameworkContext
from ..core.exceptions import TaskInterrupt, TaskRevoked
from ..core.headers import slot_in
from ..core.options import Options
from ..core.serialization import check_size, clean_text, decode, dumps, encode
from ..core.status import TaskStatus

if TYPE_CHECKING:
    from ..models.claims import ClaimedTask, WorkerInfo

    _FrameworkContext = FrameworkContext[..., Any]
else:
    _FrameworkContext = FrameworkContext

MESSAGE_LENGTH: Final = 255


class TaskRun(Protocol):
    """What a body, or what prepares its arguments, may ask of its run in a worker."""

    stop_reason: type[TaskInterrupt] | None
    has_saved: bool
    state: Any
    progress: str | None

    @property
    def claim(self) -> ClaimedTask:
        """The claimed row."""

    @property
    def options(self) -> Options:
        """The options of its backend."""

    @property
    def runner(self) -> WorkerInfo:
        """The process that runs it."""

    @property
    def task_id(self) -> UUID:
        """The row's id."""

    @property
    def database(self) -> str:
        """The alias of the queue's database."""

    @property
    def is_typed(self) -> bool:
        """Whether the values of the row carry type tags."""

    def request_stop(self, why: type[TaskInterrupt]) -> None:
        """Note that the body is to stop. The first reason counts."""

    def raise_if_stopping(self) -> None:
        """Raise the reason to stop, if there is one: a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(_FrameworkContext):  # type: ignore[misc]  # the stubs forget that the framework's is frozen
    """The framework's context, and the body's line to whoever watches it.

    ``attempt`` and ``task_result`` are the framework's. Each method is a *checkpoint*: in a body that is to stop it
    raises :class:`~horsies_django.exceptions.TaskInterrupt`.
    """

    run: TaskRun

    @property
    def is_cancelled(self) -> bool:
        """Whether the body should stop: the task was cancelled, has run too long, or was taken from this worker."""
        return self.run.stop_reason is not None

    @property
    def max_attempts(self) -> int:
        """How many attempts the task has at most; a graceful stop and a snooze use none up."""
        return self.run.claim.max_retries + 1

    @property
    def is_last_attempt(self) -> bool:
        """Whether no attempt follows this one if it fails."""
        return self.run.claim.retry_count >= self.run.claim.max_retries

    @property
    def metadata(self) -> dict[str, Any]:
        """What came along with the task: its metadata, and what the middleware of its sender added."""
        from ..models.claims import metadata_of

        return metadata_of(self.run.claim)

    @property
    def scheduled_for(self) -> datetime | None:
        """The slot of the schedule that has sent this run, an aware datetime in UTC.

        Each attempt has the same. None for what no schedule has sent, for *run now*, and for gathered calls, which have
        one run in common.
        """
        return slot_in(self.metadata)

    @property
    def state(self) -> Any:
        """What :meth:`save` stored last, in this attempt or in an earlier one; None if it never did."""
        return decode(self.run.state, typed=self.run.is_typed)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the body is. Costs nothing: the worker writes it down once a second, and at the end.

        Raises ValueError for what is not a number from 0 on.
        """
        for name, number in (("done", done), ("total", total)):
            if (name == "done" or number is not None) and not _is_amount(number):
                raise ValueError(f"progress() got {name}={number!r}; allowed: numbers from 0 on.")
        note = {"done": done, "total": total, "message": clean_text(str(message))[:MESSAGE_LENGTH]}
        self.run.progress = dumps(note)
        self.run.raise_if_stopping()

    def save(self, state: Any) -> None:
        """Keep ``state`` for the next attempt, as part of the body's own transaction if it is in one.

        So what a body has done and how far it came are stored together, or not at all. Raises TypeError or ValueError
        for a value that can't be stored.
        """
        from ..models import Task

        self.run.raise_if_stopping()
        claim = self.run.claim
        encoded = encode(state, typed=self.run.is_typed, where="the state")
        check_size(dumps(encoded), self.run.options.max_payload_bytes, "the state")
        self.run.has_saved = True
        tasks = Task.objects.using(self.run.database)
        mine = tasks.under_claims([claim], TaskStatus.RUNNING, self.run.runner.worker_id)
        if not mine.update(checkpoint=encoded):
            self.run.request_stop(TaskRevoked)
            self.run.raise_if_stopping()
        self.run.state = encoded

    async def asave(self, state: Any) -> None:
        """See :meth:`save`."""
        await sync_to_async(self.save)(state)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
