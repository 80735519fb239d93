"""An execution: one run of a task's function, how it is asked to stop, and its result."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from django.db import connections
from django.db.models import F

from ..core.backends import reads_typed
from ..core.compat import FrameworkTaskResult
from ..core.current_task import log_attributes
from ..core.exceptions import TaskInterrupt, TaskRevoked
from ..core.output import OutputBuffer
from ..core.serialization import clean_text
from ..core.status import OutputKind, TaskStatus
from ..models import Task, TaskStep
from ..models.claims import ClaimedTask, Completion, StepRecord
from ..steps.task_run import TaskRun
from . import console_logging, tracebacks
from .started_registry import Slot

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds that a function which takes the context has to check ``is_cancelled`` before it is interrupted.
CANCEL_GRACE: Final = 2.0

#: Seconds of a step after which its connection is checked before the step is recorded.
IDLE_CONNECTION: Final = 60.0


class TooLate(Exception):
    """The function must not start any more."""


class RowGone(TooLate):
    """The row that the task is about does not exist."""


@dataclass(eq=False, slots=True)
class Execution(TaskRun):
    """The state of one execution, shared by the producer, the executor and the task's context.

    Times are monotonic, in seconds.

    An exception that is raised in a thread asks its function to stop. It must reach the function and nothing else: so
    it is sent only inside :meth:`call`, whose end waits for a pending exception and catches it. Neither side
    holds a lock, which the exception could leave locked for ever: each first writes what it is about to do, then reads
    what the other has written.
    """

    time_limit: float | None = None
    # A lambda, so that a test that freezes the clock by replacing time.monotonic() freezes this too.
    submitted_at: float = field(default_factory=lambda: time.monotonic())
    start_by: float = field(init=False)
    started_at: float = float("inf")
    slot: Slot | None = None
    has_next: bool = False  # another execution follows at once in the same thread
    stop_requested_at: float = 0.0
    interrupted_at: float = 0.0
    is_interrupted: bool = False
    has_context: bool = False
    task_result: FrameworkTaskResult[..., Any] | None = None  # for the context of the function, or of its backoff
    is_leaving: bool = False  # its worker stops or is quiet: long work goes back
    has_begun: bool = False  # the function, or the middleware around it, was called
    has_lost_claim: bool = False  # its end is not stored: by the table, this worker does not hold this claim
    has_saved: bool = False  # so a transaction of the function's own may hold the row, even after its end
    has_returned: bool = False  # the function has returned, and its own transaction is storing the result
    stored_progress: str | None = None
    _shown_id: str | None = None
    _thread: int | None = None
    _awaiting: asyncio.Task[Any] | None = None
    _is_raise_done: bool | None = None

    def __post_init__(self) -> None:
        """Set until when the function may start: before its deadline, and before a reaper may take its task."""
        self.start_by = self.submitted_at + self.options.recovery.running_stale_after / 2
        if self.claimed.start_deadline is not None:
            self.start_by = min(self.start_by, self.claimed.start_deadline)

    @property
    def shown_id(self) -> str:
        """The id of the task for the log, which needs it twice."""
        if self._shown_id is None:
            self._shown_id = str(self.claimed.task_id)
        return self._shown_id

    @property
    def is_typed(self) -> bool:
        """Whether the values of the row carry type tags."""
        return self.claimed.typed_payload and reads_typed(self.claimed.backend, True)

    @property
    def ends_by(self) -> float:
        """When the time limit is reached."""
        return float("inf") if self.time_limit is None else self.started_at + self.time_limit

    @property
    def has_started(self) -> bool:
        """Whether the function has started."""
        return self.started_at != float("inf")

    def raise_if_too_late(self) -> None:
        """Raise :class:`TooLate` if the function must not start any more."""
        if time.monotonic() >= self.start_by:
            raise TooLate

    def start(self) -> None:
        """Start now, in this thread. Raises :class:`TooLate`, also if the task was withdrawn before."""
        if self.stop_reason is TaskRevoked:
            raise TooLate
        self.raise_if_too_late()
        began = time.monotonic()
        if self.slot is not None:
            self.slot.record_start(self.claimed, began, math.inf if self.time_limit is None else self.time_limit)
        self.started_at = began

    def open_output(self) -> None:
        """Keep from now on what the function writes and logs."""
        log = self.options.attempt_log
        limits = {OutputKind.OUTPUT: self.options.max_output_bytes, OutputKind.LOG: log.max_bytes if log else 0}
        self.output = OutputBuffer(limits)

    def end(self) -> None:
        """Record that the function has ended."""
        if self.output is not None:
            self.output.is_closed = True
        if self.slot is not None:
            self.slot.record_end()

    def request_stop(self, reason: type[TaskInterrupt]) -> None:
        """Ask the function to stop. The first reason counts."""
        if self.stop_reason is None:
            self.stop_requested_at = time.monotonic()
            self.stop_reason = reason

    def store_columns(self, **columns: Any) -> bool:
        """Store columns of the task's row; return whether this worker still holds it."""
        self.has_saved = True
        tasks = Task.objects.using(self.database)
        mine = tasks.under_claims([self.claimed], TaskStatus.RUNNING, self.runner.worker_id)
        return mine.update(**columns) > 0

    def has_time(self, seconds: float) -> bool:
        """Whether the function may go on for so long: the worker stays, and the time limit is not reached before."""
        return not self.is_leaving and time.monotonic() + seconds < self.ends_by

    def is_in_body(self) -> bool:
        """Whether the caller is in the function's own thread or asyncio task."""
        if self._awaiting is None:
            return threading.get_ident() == self._thread
        try:
            return asyncio.current_task() is self._awaiting
        except RuntimeError:  # a thread without a loop
            return False

    def lock_on_sqlite(self) -> None:
        """Begin to write, or raise TaskRevoked if this worker no longer holds the task."""
        if connections[self.database].vendor == "sqlite" and not self.store_columns(claim=F("claim")):
            self.request_stop(TaskRevoked)
            self.raise_if_stopping()

    def read_steps(self) -> list[StepRecord]:
        """Return the records of earlier runs, and events."""
        return TaskStep.objects.using(self.database).records_of(self.task_id)

    def write_step(self, record: StepRecord) -> bool:
        """Write a record; False if this worker no longer holds the task, or if the record must stay."""
        connection = connections[self.database]
        if record.seconds > IDLE_CONNECTION and not connection.in_atomic_block and not connection.is_usable():
            connection.close()  # the server, a pooler or a firewall has closed it during the step
        return TaskStep.objects.using(self.database).write(record, self.claimed, self.runner.worker_id)

    def interrupt(self) -> None:
        """Interrupt a function that was asked to stop: cancel a coroutine, raise in a thread.

        Call it until the function ends.
        """
        if self.is_interrupted or self.stop_reason is None:
            return
        self.interrupted_at = time.monotonic()
        if (task := self._awaiting) is not None:  # the event loop may remove it meanwhile
            self.is_interrupted = True
            task.get_loop().call_soon_threadsafe(lambda: self._awaiting and task.cancel())
        elif self._thread is not None and not self._is_in_grace():
            self._raise(self.stop_reason)

    def _is_in_grace(self) -> bool:
        return (
            self.has_context
            and self.stop_reason is TaskRevoked
            and time.monotonic() < self.stop_requested_at + CANCEL_GRACE
        )

    def _raise(self, exception: type[TaskInterrupt]) -> None:
        self._is_raise_done = False
        self.is_interrupted = True
        if (thread := self._thread) is not None:  # otherwise call() ended before is_interrupted was set
            _raise_in_thread(thread, exception)
        self._is_raise_done = True

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in this thread, so that an interrupt may be raised in it, and nowhere else."""
        self.raise_if_stopping()
        self.has_begun = True
        thread = self._thread = threading.get_ident()
        try:
            return function(*args, **kwargs)
        finally:
            self._thread = None
            if self._is_raise_done is not None:
                while not self._is_raise_done:  # no Event: the exception could leave its lock locked
                    time.sleep(0.0001)
                # An exception that arrives before this line ends the block as it would end the function.
                _take_back_interrupt(thread)

    async def cancellable(self, awaitable: Awaitable[Any], task: asyncio.Task[Any] | None = None) -> Any:
        """Await a task's coroutine, and nothing after it, so that another thread can cancel it.

        ``task`` is the current asyncio task, if the caller knows it: to ask for it takes as long as a short coroutine.
        """
        self.has_begun = True
        self._awaiting = task or asyncio.current_task()
        try:
            try:
                return await awaitable
            finally:
                if self._replay is not None:
                    await self._replay.end_children()
        finally:
            self._awaiting = None


class _TakenBack(BaseException):
    """Takes the place of an interrupt that came too late."""


def _take_back_interrupt(thread: int) -> None:
    """Replace an interrupt of this thread that has not been raised yet by one that is raised and caught here.

    To clear it with NULL would leave a flag set in CPython 3.11 and 3.12 until another exception is raised so: on 3.12
    each call takes 1.6 times as long, and on 3.11 a traced thread (a debugger, coverage) hangs.
    """
    try:
        _raise_in_thread(thread, _TakenBack)
        while True:
            time.sleep(0)
    except _TakenBack:
        pass


def _raise_in_thread(thread: int, exception: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


logger = logging.getLogger("horsies_django.worker")

_ENDED: Final = "task %s id=%s name=%s queue=%s attempt=%d duration=%.3fs%s"


@dataclass(frozen=True, slots=True)
class NotStarted:
    """An execution that came too late to start: its task goes back to the queue."""

    execution: Execution


@dataclass(slots=True, eq=False)  # not frozen: that would take three times as long
class ExecutionResult:
    """An execution that has ended: what to store, and what to log."""

    execution: Execution
    completion: Completion
    exception: BaseException | None = None
    is_stored: bool = False  # by the transaction of the function itself
    duration: float = field(init=False)

    def __post_init__(self) -> None:
        """Measure the duration."""
        self.duration = max(0.0, time.monotonic() - self.execution.started_at)

    @property
    def claimed(self) -> ClaimedTask:
        """The claimed row."""
        return self.execution.claimed

    @property
    def may_wait(self) -> bool:
        """Whether no workflow and no limit waits for this end."""
        return self.claimed.workflow_id is None and self.claimed.limit_key is None

    @property
    def is_final(self) -> bool:
        """Whether no further attempt follows, as far as this worker knows."""
        return self.completion.delay is None

    def log(self) -> None:
        """Log the end of an attempt. Lines of short tasks are written together when the handler is flushed."""
        claimed, ended = self.claimed, self.completion
        error = f" error={ended.error.code}" if ended.error else ""
        again = "" if ended.delay is None else f" in={ended.delay:.1f}s"
        values = (
            self.execution.shown_id,
            claimed.task_name,
            claimed.queue_name,
            claimed.attempt,
            self.duration,
            error + again,
        )
        if self.execution.stop_reason is TaskRevoked and not self.is_stored:
            logger.warning(_ENDED, "revoked", *values, extra=log_attributes(claimed))
        elif ended.unknown_to is not None:
            why = f"{again} for a worker of another version: {clean_text(str(self.exception))}"
            logger.warning(_ENDED, "handed back", *values[:-1], why, extra=log_attributes(claimed))
        elif ended.error is None:
            how = f"waits for {ended.waits_for}" if ended.waits_for else "snoozes" if again else "completed"
            console_logging.log_later(claimed, _ENDED, how, *values, is_last=False)
        elif again:
            kind = f"{ended.error.exception_class}: " if ended.error.exception_class else ""
            extra = log_attributes(claimed)
            why = f"{error}{again} why={kind}{ended.error.message}"
            logger.warning(_ENDED, "retries", *values[:-1], why, extra=extra)
            trace = "task traceback id=%s attempt=%s"
            logger.debug(trace, claimed.task_id, claimed.attempt, exc_info=self._exc_info(), extra=extra)
        else:
            logger.error(_ENDED, "failed", *values, exc_info=self._exc_info(), extra=log_attributes(claimed))

    def _exc_info(self) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
        raised = self.exception
        return None if raised is None else (type(raised), raised, tracebacks.from_function(raised))
