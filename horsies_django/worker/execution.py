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
from .started_registry import Place

#: Seconds that a body which was given a context has to see ``is_cancelled``, before it is interrupted.
COURTESY: Final = 2.0


class TooLate(Exception):
    """The body must not begin any more."""


@dataclass(eq=False, slots=True)
class Run:
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
    submitted: float = field(default_factory=time.monotonic)
    begins_by: float = field(init=False)
    began: float = float("inf")
    place: Place | None = None
    is_followed: bool = False  # another body begins right behind it, or is waiting to
    told: type[TaskInterrupt] | None = None
    told_at: float = 0.0
    tried_at: float = 0.0
    is_sent: bool = False
    has_context: bool = False
    has_saved: bool = False  # so a transaction of the body's own may hold the row, even after the body
    is_over: bool = False  # the body has returned, and its end is being stored by itself
    state: Any = None
    progress: str | None = None
    noted: str | None = None
    _thread: int | None = None
    _cancel: Callable[[], object] | None = None
    _settled: bool | None = None

    def __post_init__(self) -> None:
        """Set until when the body may begin: its deadline, and no pause after which a reaper may have its task."""
        self.begins_by = self.submitted + self.options.recovery.running_stale_threshold_ms / 2_000
        if self.claim.begins_by is not None:
            self.begins_by = min(self.begins_by, self.claim.begins_by)

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
        return float("inf") if self.time_limit is None else self.began + self.time_limit

    @property
    def has_begun(self) -> bool:
        """Whether the body has begun."""
        return self.began != float("inf")

    def require_time(self) -> None:
        """Raise :class:`TooLate` if the body must not begin any more."""
        if time.monotonic() >= self.begins_by:
            raise TooLate

    def begin(self) -> None:
        """The body begins now, in this thread. Raises :class:`TooLate`, also if its task was taken back before."""
        if self.told is TaskRevoked:
            raise TooLate
        self.require_time()
        began = time.monotonic()
        if self.place is not None:
            self.place.begin(self.claim, began, math.inf if self.time_limit is None else self.time_limit)
        self.began = began

    def end(self) -> None:
        """The body has ended."""
        if self.place is not None:
            self.place.end()

    def tell(self, why: type[TaskInterrupt]) -> None:
        """Note that the body is to stop. The first reason counts."""
        if self.told is None:
            self.told_at = time.monotonic()
            self.told = why

    def check(self) -> None:
        """Raise what the body was told, if it was: a checkpoint."""
        if self.told is not None:
            raise self.told

    def interrupt(self) -> None:
        """Stop a body that was told to: cancel a coroutine, raise in a thread. Call it until the body has ended."""
        if self.is_sent or self.told is None:
            return
        self.tried_at = time.monotonic()
        if (cancel := self._cancel) is not None:  # the loop may take it away in between
            self.is_sent = True
            cancel()
        elif self._thread is not None and not self._is_courteous():
            self._raise(self.told)

    def _is_courteous(self) -> bool:
        return self.has_context and self.told is TaskRevoked and time.monotonic() < self.told_at + COURTESY

    def _raise(self, what: type[TaskInterrupt]) -> None:
        self._settled = False
        self.is_sent = True
        if (thread := self._thread) is not None:  # else it was closed before anything was said to be sent
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))
        self._settled = True

    @contextmanager
    def window(self) -> Iterator[None]:
        """Around a body, in the thread that runs it: where an interrupt may be raised."""
        self.check()
        thread = self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            if self._settled is not None:
                while not self._settled:  # no Event: the exception could leave its lock locked
                    time.sleep(0.0001)
                # What comes before it is taken back ends this block as it would the body.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)

    async def wait_for(self, body: Awaitable[Any]) -> Any:
        """Await a body's coroutine so that it can be cancelled from another thread, and nothing after it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, lambda: self._cancel and task.cancel())
        try:
            return await body
        finally:
            self._cancel = None
