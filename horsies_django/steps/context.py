"""Long work, as the methods of ``TaskContext``: steps, waits and the rest that survives a run of the body."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypedDict, TypeVar, Unpack, cast, overload

from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone

from ..core.current_task import inside_step
from ..core.exceptions import Discard, Retry, Snooze, TaskRestarted, delay_seconds
from ..core.headers import RESTARTS
from ..core.parameters import parameters_of
from ..core.results import TaskResult
from ..core.retry import RetryPolicy
from ..core.serialization import check_size, dumps, encode
from ..core.status import StepKind, StepStatus

if TYPE_CHECKING:  # a task may be declared before the apps are ready
    from django.db.models import QuerySet

    from ..models.claims import StepRecord
    from .batches import Turn
    from .task_run import TaskRun

T = TypeVar("T")
Row = TypeVar("Row")

#: A body raises these for its task, also in a step: nothing is kept of that.
_OF_THE_TASK: Final = (Retry, Snooze, Discard)


class BatchOptions(TypedDict, total=False):
    """The options of ``batches()``."""

    size: int
    name: str
    lock: bool
    skip_locked: bool
    pause: float | timedelta


class LongWork:
    """Methods of a context. Each is a checkpoint, and kept in the order of the body."""

    __slots__ = ()

    if TYPE_CHECKING:  # TaskContext declares them
        run: TaskRun
        task_result: Any

    @overload
    def batches(
        self,
        queryset: QuerySet[Any, Row],
        function: None = None,
        **options: Unpack[BatchOptions],
    ) -> Iterator[Turn[Row]]: ...

    @overload
    def batches(
        self,
        queryset: QuerySet[Any, Row],
        function: Callable[[list[Row]], object],
        **options: Unpack[BatchOptions],
    ) -> None: ...

    def batches(
        self,
        queryset: QuerySet[Any, Any],
        function: Callable[[list[Any]], object] | None = None,
        **options: Unpack[BatchOptions],
    ) -> Iterator[Turn[Any]] | None:
        """Go through the rows of ``queryset``, ``size`` (500) in a turn: ``for turn in …: with turn as rows: …``.

        Each turn is a transaction on the queue's database with the body's effects and the place of the last row, so it
        happens exactly once. Leaving the ``with`` block commits, an exception rolls back. With ``function``, this calls
        it with the rows of each turn, and returns None. ``lock`` locks the rows of a turn; ``skip_locked`` leaves out
        those that others have locked, also later. ``pause`` are seconds between two turns, and ``name`` is that of the
        record.

        Rows are in the order of the queryset, by default of the primary key. Raises TypeError or ValueError for a
        queryset that has no such order, or may have a row twice, and RuntimeError where a step would.
        """
        from .batches import Loop

        _check_function("batches", function)
        loop = Loop(self.run, queryset, **options)
        if function is None:
            return loop.turns()
        loop.call(function)
        return None

    def abatches(
        self,
        queryset: QuerySet[Any, Row],
        function: Callable[[list[Row]], object],
        **options: Unpack[BatchOptions],
    ) -> Coroutine[Any, Any, None]:
        """See :meth:`batches`. ``function`` is no coroutine function; each turn is one call of it in a thread."""
        from .batches import Loop

        _check_function("abatches", function)
        loop = Loop(self.run, queryset, **options)
        return loop.acall(function)

    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        atomic: bool = False,
        retry_policy: RetryPolicy | None = None,
        **kwargs: Any,
    ) -> T:
        """Call ``function`` once and keep what it returns: later runs of the body get the kept value.

        It runs at least once; if ``atomic``, its effects on the queue's database are kept with the value, exactly once.
        ``retry_policy`` repeats the step, not the body; a delay above five seconds gives up the slot. Raises
        :class:`~horsies_django.exceptions.StepFailed` when it has failed for good, ValueError for a bad name, and
        RuntimeError inside a transaction, a turn or another step.
        """
        replay = self.run.replay
        record = replay.open_step(replay.begin(StepKind.STEP, name))
        while record.status == StepStatus.WAITING:
            try:
                self._try(record, partial(function, *args, **kwargs), is_atomic=atomic)
            except _OF_THE_TASK:
                raise
            except Exception as error:  # noqa: BLE001  # it is kept, or the step is tried again
                time.sleep(replay.fail(record, error, retry_policy))
        return cast("T", replay.value_of(record))

    def _try(self, record: StepRecord, function: Callable[[], Any], *, is_atomic: bool) -> None:
        """Call a step's function and keep its value."""
        with transaction.atomic(using=self.run.database) if is_atomic else nullcontext():
            if is_atomic:
                self.run.lock_on_sqlite()
            with _timed(record):
                value = function()
            self.run.replay.complete(record, value)

    def astep(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = False,
        retry_policy: RetryPolicy | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """See :meth:`step`. Its number is taken at this call, so that steps may be gathered.

        ``function`` is a coroutine function, or a function that runs in a thread. Only the latter can be ``atomic``,
        only the former can have a ``timeout``: it fails with TimeoutError after so many seconds.
        """
        is_coroutine = inspect.iscoroutinefunction(function)
        if atomic and is_coroutine:
            raise TypeError(f"The step {name!r} is atomic; allowed: a function that is no coroutine function.")
        if timeout is not None and not is_coroutine:
            raise TypeError(f"The step {name!r} has a timeout; allowed: a coroutine function, which can be cancelled.")
        key = self.run.replay.begin(StepKind.STEP, name)
        return self._astep(key, partial(function, *args, **kwargs), is_coroutine, atomic, retry_policy, timeout)

    async def _astep(
        self,
        key: tuple[str, int],
        function: Callable[[], Any],
        is_coroutine: bool,
        is_atomic: bool,
        policy: RetryPolicy | None,
        timeout: float | None,
    ) -> Any:
        replay = self.run.replay
        replay.enter_child()
        record = await sync_to_async(replay.open_step)(key)
        while record.status == StepStatus.WAITING:
            try:
                if is_coroutine:
                    with _timed(record):
                        async with asyncio.timeout(timeout):
                            value = await function()
                    await sync_to_async(replay.complete)(record, value)
                else:
                    await sync_to_async(self._try)(record, function, is_atomic=is_atomic)
            except _OF_THE_TASK:
                raise
            except Exception as error:  # noqa: BLE001  # it is kept, or the step is tried again
                await asyncio.sleep(await sync_to_async(replay.fail)(record, error, policy))
        return replay.value_of(record)

    def key(self, name: str) -> str:
        """Return an idempotency key for other services: a text for the next step of this name, the same in each run.

        In a step's function it is that of the step, and RuntimeError is raised for another name.
        """
        restarts = self.run.metadata.get(RESTARTS, 0)
        run = f"{self.run.task_id}" + (f".{restarts}" if restarts else "")
        return f"{run}:{name}:{self.run.replay.key_number(name)}"

    def sleep(self, delay: float | timedelta) -> None:
        """Sleep for seconds or a timedelta, without the slot if it is longer than a second."""
        replay = self.run.replay
        key = replay.begin(StepKind.SLEEP, "sleep", is_wait=True)
        time.sleep(replay.sleep_left(key, delay_seconds("sleep()", delay)))
        replay.end_sleep(key)

    async def asleep(self, delay: float | timedelta) -> None:
        """See :meth:`sleep`."""
        replay = self.run.replay
        key = replay.begin(StepKind.SLEEP, "sleep", is_wait=True)
        await asyncio.sleep(await sync_to_async(replay.sleep_left)(key, delay_seconds("asleep()", delay)))
        await sync_to_async(replay.end_sleep)(key)

    def sleep_until(self, when: datetime) -> None:
        """Sleep until a time, an aware datetime. Raises ValueError for a naive one."""
        self.sleep(self._until(when))

    async def asleep_until(self, when: datetime) -> None:
        """See :meth:`sleep_until`."""
        await self.asleep(await sync_to_async(self._until)(when))

    def _until(self, when: datetime) -> timedelta:
        if timezone.is_naive(when):
            raise ValueError(f"sleep_until() got {when!r}; allowed: an aware datetime.")
        return max(timedelta(), when - self.run.now())

    def wait_event(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """Wait without a slot for an event of this name and return its payload; the n-th call takes the n-th event.

        Raises :class:`~horsies_django.exceptions.WaitTimeout` after ``timeout`` seconds.
        """
        return self.run.replay.wait_event(*self._begin_event(name, timeout))

    async def await_event(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """See :meth:`wait_event`."""
        return await sync_to_async(self.run.replay.wait_event)(*self._begin_event(name, timeout))

    def _begin_event(self, name: str, timeout: float | timedelta | None) -> tuple[tuple[str, int], float | None]:
        from ..models.claims import check_event_name

        check_event_name(name)
        seconds = None if timeout is None else delay_seconds("wait_event(timeout=)", timeout)
        return self.run.replay.begin(StepKind.EVENT, f"event:{name}", is_wait=True), seconds

    def wait(self, handle: Any, timeout: float | timedelta | None = None) -> TaskResult[Any, Any]:
        """Wait without a slot for the end of a workflow or a batch, and return its result.

        After ``timeout`` seconds that is an error with the code ``WAIT_TIMEOUT``. Raises TypeError for other handles,
        and ValueError for one on another database.
        """
        return self.run.replay.wait_for_end(*self._begin_wait(handle, timeout))

    async def await_(self, handle: Any, timeout: float | timedelta | None = None) -> TaskResult[Any, Any]:
        """See :meth:`wait`."""
        return await sync_to_async(self.run.replay.wait_for_end)(*self._begin_wait(handle, timeout))

    def _begin_wait(self, handle: Any, timeout: float | timedelta | None) -> tuple[tuple[str, int], Any, float | None]:
        if (watch_end := getattr(handle, "_watch_end", None)) is None:
            raise TypeError(f"wait() got {handle!r}; allowed: the handle of a workflow or of a batch.")
        if handle._database != self.run.database:
            raise ValueError(
                f"wait() got {handle!r} on the database {handle._database!r}; allowed: one on {self.run.database!r}."
            )
        seconds = None if timeout is None else delay_seconds("wait(timeout=)", timeout)
        return self.run.replay.begin(StepKind.WAIT, f"workflow:{handle.id}", is_wait=True), watch_end, seconds

    def patched(self, name: str) -> bool:
        """Whether the code of a change applies to this run: False if it began before the change. It stays the same."""
        return self.run.replay.is_patched(self._begin_patch(name))

    async def apatched(self, name: str) -> bool:
        """See :meth:`patched`."""
        return await sync_to_async(self.run.replay.is_patched)(self._begin_patch(name))

    def _begin_patch(self, name: str) -> tuple[str, int]:
        if not isinstance(name, str) or not name:
            raise ValueError(f"patched() got {name!r}; allowed: a text.")
        return self.run.replay.begin(StepKind.PATCH, f"patch:{name}")

    def restart(self, **kwargs: Any) -> NoReturn:
        """Go on as a fresh run of the same task: its records are dropped, its id stays.

        ``kwargs`` replace keyword arguments of the task's. Raises TypeError or ValueError for values that can't be
        stored.
        """
        run = self.run
        run.replay.begin(StepKind.PATCH, "patch:restart", is_wait=True)
        parameters = parameters_of(self.task_result.task.func, takes_context=True)
        if not parameters.accepts_any and (unknown := kwargs.keys() - set(parameters.own)):
            allowed = ", ".join(parameters.own) or "none"
            raise TypeError(f"restart() got {', '.join(sorted(unknown))}; allowed: {allowed}.")
        stored = encode(kwargs, typed=run.is_typed, where="the arguments of restart()")
        check_size(dumps(stored), run.options.max_payload_bytes, "the arguments of restart()")
        args, named = parameters.replace(json.loads(run.claimed.args), json.loads(run.claimed.kwargs), stored)
        metadata = run.metadata | {RESTARTS: run.metadata.get(RESTARTS, 0) + 1}
        run.replay.decide(TaskRestarted({"args": dumps(args), "kwargs": dumps(named), "metadata": dumps(metadata)}))


def _check_function(method: str, function: object) -> None:
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{method}() got {function!r}; allowed: a function that is no coroutine function.")


@contextmanager
def _timed(record: StepRecord) -> Iterator[None]:
    """Run a step's function in this block."""
    began = time.monotonic()
    try:
        with inside_step(f"the step {record.label!r}", (record.name, record.number)):
            yield
    finally:
        record.seconds = time.monotonic() - began
