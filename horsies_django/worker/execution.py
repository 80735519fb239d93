"""A run: one body in flight, and how it is told to stop."""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from uuid import UUID

from ..core.backends import reads_rich
from ..core.exceptions import TaskInterrupt, TaskRevoked
from ..core.options import Options
from ..models.claims import ClaimedTask, Runner
from .started_registry import Slot

#: Seconds that a body which was given a context has to see ``is_cancelled``, before it is interrupted.
CANCEL_GRACE: Final = 2.0


class TooLate(Exception):
    """The body must not begin any more."""


@dataclass(eq=False, slots=True)
class Execution:
    """What the pump, the executor and the body's context share of one body. Times are monotonic, in seconds.

    A thread is told to stop by an exception that is raised in it. It must meet the body and nothing else: it is sent
    only while the *window* is open, and who closes the window waits for what is on its way and takes it back. Neither
    side holds a lock, which the exception could leave locked for ever: each says first what it is about to do, and
    looks then at what the other has said.
    """

    claim: ClaimedTask
    options: Options
    runner: Runner
    time_limit: float | None = None
    submitted_at: float = field(default_factory=time.monotonic)
    start_by: float = field(init=False)
    started_at: float = float("inf")
    slot: Slot | None = None
    has_next: bool = False  # another body begins right behind it, or is waiting to
    stop_reason: type[TaskInterrupt] | None = None
    stop_requested_at: float = 0.0
    interrupted_at: float = 0.0
    is_interrupted: bool = False
    has_context: bool = False
    has_saved: bool = False  # so a transaction of the body's own may hold the row, even after the body
    is_over: bool = False  # the body has returned, and its end is being stored by itself
    state: Any = None
    progress: str | None = None
    stored_progress: str | None = None
    _thread: int | None = None
    _cancel: Callable[[], object] | None = None
    _is_raise_done: bool | None = None

    def __post_init__(self) -> None:
        """Set until when the body may begin: its deadline, and no pause after which a reaper may have its task."""
        self.start_by = self.submitted_at + self.options.recovery.running_stale_threshold_ms / 2_000
        if self.claim.begins_by is not None:
            self.start_by = min(self.start_by, self.claim.begins_by)

    @property
    def task_id(self) -> UUID:
        """The row."""
        return self.claim.task_id

    @property
    def database(self) -> str:
        """The alias of the queue's database."""
        return self.options.database

    @property
    def is_rich(self) -> bool:
        """Whether the values of the row carry type tags."""
        return self.claim.rich and reads_rich(self.claim.backend, True)

    @property
    def ends_by(self) -> float:
        """When its time is up."""
        return float("inf") if self.time_limit is None else self.started_at + self.time_limit

    @property
    def has_started(self) -> bool:
        """Whether the body has begun."""
        return self.started_at != float("inf")

    def raise_if_too_late(self) -> None:
        """Raise :class:`TooLate` if the body must not begin any more."""
        if time.monotonic() >= self.start_by:
            raise TooLate

    def start(self) -> None:
        """The body begins now, in this thread. Raises :class:`TooLate`, also if its task was taken back before."""
        if self.stop_reason is TaskRevoked:
            raise TooLate
        self.raise_if_too_late()
        began = time.monotonic()
        if self.slot is not None:
            self.slot.record_start(self.claim, began, math.inf if self.time_limit is None else self.time_limit)
        self.started_at = began

    def end(self) -> None:
        """The body has ended."""
        if self.slot is not None:
            self.slot.record_end()

    def request_stop(self, why: type[TaskInterrupt]) -> None:
        """Note that the body is to stop. The first reason counts."""
        if self.stop_reason is None:
            self.stop_requested_at = time.monotonic()
            self.stop_reason = why

    def raise_if_stopping(self) -> None:
        """Raise what the body was told, if it was: a checkpoint."""
        if self.stop_reason is not None:
            raise self.stop_reason

    def interrupt(self) -> None:
        """Stop a body that was told to: cancel a coroutine, raise in a thread. Call it until the body has ended."""
        if self.is_interrupted or self.stop_reason is None:
            return
        self.interrupted_at = time.monotonic()
        if (cancel := self._cancel) is not None:  # the loop may take it away in between
            self.is_interrupted = True
            cancel()
        elif self._thread is not None and not self._is_in_grace():
            self._raise(self.stop_reason)

    def _is_in_grace(self) -> bool:
        return (
            self.has_context
            and self.stop_reason is TaskRevoked
            and time.monotonic() < self.stop_requested_at + CANCEL_GRACE
        )

    def _raise(self, what: type[TaskInterrupt]) -> None:
        self._is_raise_done = False
        self.is_interrupted = True
        if (thread := self._thread) is not None:  # else it was closed before anything was said to be sent
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))
        self._is_raise_done = True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Around a body, in the thread that runs it: where an interrupt may be raised."""
        self.raise_if_stopping()
        thread = self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            if self._is_raise_done is not None:
                while not self._is_raise_done:  # no Event: the exception could leave its lock locked
                    time.sleep(0.0001)
                # What comes before it is taken back ends this block as it would the body.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)

    async def cancellable(self, body: Awaitable[Any]) -> Any:
        """Await a body's coroutine so that it can be cancelled from another thread, and nothing after it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, lambda: self._cancel and task.cancel())
        try:
            return await body
        finally:
            self._cancel = None
