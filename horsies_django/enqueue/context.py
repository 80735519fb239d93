"""``TaskContext``, the first argument of a task with ``takes_context=True``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async

from ..core.compat import TaskContext as FrameworkContext
from ..core.exceptions import TaskRevoked
from ..core.headers import slot_in
from ..core.serialization import check_size, clean_text, decode, dumps, encode
from ..core.status import OutputKind
from ..steps.context import LongWork

if TYPE_CHECKING:
    from ..steps.task_run import TaskRun

    _FrameworkContext = FrameworkContext[..., Any]
else:
    _FrameworkContext = FrameworkContext

MESSAGE_LENGTH: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(LongWork, _FrameworkContext):  # type: ignore[misc]  # the stubs forget that the framework's is frozen
    """The framework's context, plus progress, saved state and cancellation.

    ``attempt`` and ``task_result`` come from the framework. ``progress()`` and ``save()`` are *checkpoints*: they raise
    :class:`~horsies_django.exceptions.TaskInterrupt` if the body should stop.
    """

    run: TaskRun

    @property
    def is_cancelled(self) -> bool:
        """Whether the body should stop: the task was cancelled, timed out, or reclaimed from this worker."""
        return self.run.stop_reason is not None

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts. A graceful stop or a snooze doesn't use one up."""
        return self.run.claimed.max_retries + 1

    @property
    def is_last_attempt(self) -> bool:
        """Whether the task fails for good if this attempt fails."""
        return self.run.claimed.retry_count >= self.run.claimed.max_retries

    @property
    def metadata(self) -> dict[str, Any]:
        """The task's metadata, including the headers that the sender's middleware added.

        Changes of the dict are kept for this attempt; :meth:`save_metadata` stores them.
        """
        return self.run.metadata

    @property
    def scheduled_for(self) -> datetime | None:
        """The schedule's slot that this run is for, as an aware datetime in UTC; the same for each attempt.

        None if no schedule sent the task, for *run now*, and for grouped calls, which share one run.
        """
        return slot_in(self.metadata)

    @property
    def state(self) -> Any:
        """The state that :meth:`save` stored last, in this or an earlier attempt; None if there is none."""
        return decode(self.run.state, typed=self.run.is_typed)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report progress. Runs no query: the worker stores the last report once a second and at the end.

        Raises ValueError unless ``done`` and ``total`` are numbers from 0 on.
        """
        for name, number in (("done", done), ("total", total)):
            if (name == "done" or number is not None) and not _is_amount(number):
                raise ValueError(f"progress() got {name}={number!r}; allowed: numbers from 0 on.")
        report = {"done": done, "total": total, "message": clean_text(str(message))[:MESSAGE_LENGTH]}
        self.run.progress = dumps(report)
        self.run.raise_if_stopping()

    def write(self, chunk: Any) -> None:
        """Keep a text or a JSON value as the next part of the task's output, for :meth:`TaskHandle.output` and others.

        Runs no query: the worker stores it within a second, and at the latest with the result. It is a checkpoint.
        Nothing is kept of what the body writes again while it comes to the end of its recorded steps, nor beyond
        ``OPTIONS["max_output_bytes"]``. Raises TypeError or ValueError for a value that is no JSON.
        """
        self.run.raise_if_stopping()
        data = encode(chunk, typed=False, where="the chunk of write()")
        if self.run.output is not None and not self.run.is_replaying:
            self.run.output.add(OutputKind.OUTPUT, data)

    async def awrite(self, chunk: Any) -> None:
        """See :meth:`write`."""
        self.write(chunk)

    def save(self, state: Any) -> None:
        """Store ``state`` for the next attempt, as part of the body's own transaction if it is in one.

        In a transaction, the body's work and its state are committed together or not at all. Raises TypeError or
        ValueError for a value that can't be stored.
        """
        self.run.state = self._store("checkpoint", state, typed=self.run.is_typed, where="the state")

    async def asave(self, state: Any) -> None:
        """See :meth:`save`."""
        await sync_to_async(self.save)(state)

    def save_metadata(self) -> None:
        """Store ``metadata`` in the task's row, for later attempts and for whatever reads the row.

        It is a checkpoint, and part of the body's own transaction if it is in one. Raises TypeError or ValueError for a
        value that is no JSON.
        """
        self._store("metadata", self.metadata or None, typed=False, where="the metadata")

    async def asave_metadata(self) -> None:
        """See :meth:`save_metadata`."""
        await sync_to_async(self.save_metadata)()

    def _store(self, column: str, value: Any, *, typed: bool, where: str) -> Any:
        """Store a value in a column of the row, and return it as it is stored. A checkpoint."""
        self.run.raise_if_stopping()
        encoded = encode(value, typed=typed, where=where)
        check_size(dumps(encoded), self.run.options.max_payload_bytes, where)
        if not self.run.store_columns(**{column: encoded}):
            self.run.request_stop(TaskRevoked)
            self.run.raise_if_stopping()
        return encoded


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
