"""``Batch``: many calls, and callbacks that run once all of them have ended; and the handle on one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.backends import config_of
from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.current_task import is_dry_run
from ..core.ids import uuid7
from ..core.workflow_status import WorkflowTaskStatus
from ..enqueue.nodes import NodeKey
from ..workflows.compile import NAME_LENGTH, is_name
from ..workflows.handle import WorkflowHandle
from .calls import Columns, NodeColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How many calls of a batch have each state. Callbacks do not count."""

    total: int
    waiting: int
    running: int
    completed: int
    failed: int
    cancelled: int

    @property
    def done(self) -> int:
        """How many have ended."""
        return self.completed + self.failed + self.cancelled


class BatchHandle(WorkflowHandle[list[Any]]):
    """One batch, by its id. Runs no query until asked, and can be rebuilt from the id anywhere.

    It has the methods of a workflow's handle: ``status()``, ``get()``, ``results()``, ``retry()``, ``cancel()``,
    ``pause()`` and ``resume()``. Its value is the list of the calls' values, in the order in which they were added.
    """

    def __init__(self, id: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
        super().__init__(id, backend=backend)
        self._calls = NodeColumns(backend, self.id)

    def __repr__(self) -> str:
        return f"BatchHandle({str(self.id)!r})"

    def progress(self) -> BatchProgress:
        """Return how many calls have each state, in one statement. All are 0 if there is no such batch."""
        from . import rows

        counts = rows.count(self._database, self.id)
        ended = WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED
        completed, failed, cancelled = (counts.pop(status, 0) for status in ended)
        running, waiting = counts.pop(WorkflowTaskStatus.RUNNING, 0), sum(counts.values())
        return BatchProgress(
            total=waiting + running + completed + failed + cancelled,
            waiting=waiting,
            running=running,
            completed=completed,
            failed=failed,
            cancelled=cancelled,
        )

    def add(self, task: Any, /, *args: Any, **kwargs: Any) -> NodeKey[Any]:
        """Add a call while another call of the batch has not ended; return the key for :meth:`result_for`.

        Part of the current transaction. Tasks of the batch may add calls too, since they have not ended. Raises
        BatchEnded once all calls have ended, LookupError if there is no such batch, InvalidTask for a value that is not
        a task, or a task with options of a single send, TypeError or ValueError for arguments that don't fit.
        """
        (key,) = self._add([self._calls.node_of_call(task, args, kwargs)])
        return key

    def add_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> list[NodeKey[Any]]:
        """Add a call for each dict of keyword arguments, all of them or none. See :meth:`add`."""
        return self._add([self._calls.node_of_call(task, (), kwargs) for kwargs in calls])

    async def aprogress(self) -> BatchProgress:
        """See :meth:`progress`."""
        return await sync_to_async(self.progress)()

    async def aadd(self, task: Any, /, *args: Any, **kwargs: Any) -> NodeKey[Any]:
        """See :meth:`add`."""
        return await sync_to_async(self.add)(task, *args, **kwargs)

    async def aadd_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> list[NodeKey[Any]]:
        """See :meth:`add_many`."""
        return await sync_to_async(self.add_many)(task, calls)

    def _add(self, calls: list[Columns]) -> list[NodeKey[Any]]:
        from . import rows

        names = map(rows.call_node_id, range(len(calls))) if is_dry_run() else rows.add(self._database, self.id, calls)
        return [NodeKey(name) for name in names]


class Batch:
    """Many calls, of one task or of several, and callbacks that run once all of them have ended.

        >>> with Batch("newsletter", on_success=publish, on_complete=report) as batch:
        ...     batch.add_many(send_mail, [{"user_id": user_id} for user_id in user_ids])
        ...     batch.add(send_copy, "archive@example.com")
        >>> batch.handle.progress().done

    The batch starts at the end of the block, if that raises nothing, or with :meth:`start`. ``on_success`` runs once,
    after all calls have completed; ``on_complete`` runs once, after all have ended. Each is a task, or
    ``task.node(…)(…)`` with options and arguments. A function with a parameter ``batch_id`` gets the id as text. The
    function of ``on_success`` with a parameter ``results`` gets the list of the calls' values, unless it is given.
    Raises ValueError for an invalid name, and the errors of :meth:`add` for a callback.
    """

    def __init__(
        self,
        name: str,
        *,
        on_success: Any = None,
        on_complete: Any = None,
        backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    ) -> None:
        if not is_name(name):
            raise ValueError(f"Batch: name is {name!r}; allowed: a text of 1 to {NAME_LENGTH} characters.")
        self.name = name
        self.id = uuid7()
        self._handle: BatchHandle | None = None
        self._node_columns = NodeColumns(backend, self.id)
        callbacks = {"on_success": on_success, "on_complete": on_complete}
        self._callbacks = {
            key: self._node_columns.node_of_callback(key, callback, has_results=key == "on_success")
            for key, callback in callbacks.items()
            if callback is not None
        }
        self._calls: list[Columns] = []

    @property
    def handle(self) -> BatchHandle:
        """The handle of the batch. Raises ValueError if the batch has not started."""
        if self._handle is None:
            raise ValueError(f"{self!r} has not started; allowed: its handle after the block, or after start().")
        return self._handle

    def add(self, task: Any, /, *args: Any, **kwargs: Any) -> NodeKey[Any]:
        """Add a call; after the batch has started, as :meth:`BatchHandle.add` does.

        Returns the key for ``handle.result_for()``. Raises InvalidTask for a value that is not a task, or a task with
        options of a single send, TypeError or ValueError, naming the parameter, for arguments that don't fit.
        """
        (key,) = self._add([self._node_columns.node_of_call(task, args, kwargs)])
        return key

    def add_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> list[NodeKey[Any]]:
        """Add a call for each dict of keyword arguments. See :meth:`add`."""
        return self._add([self._node_columns.node_of_call(task, (), kwargs) for kwargs in calls])

    def start(self) -> BatchHandle:
        """Start the batch as part of the current transaction. A batch without calls ends at once.

        Raises ValueError if it has started already.
        """
        from . import rows

        if self._handle is not None:
            raise ValueError(f"{self!r} has been started; allowed: one start().")
        backend = self._node_columns.alias
        if not is_dry_run():
            database = config_of(backend).database
            rows.start(database, self.id, self.name, self._node_columns.node_of_calls(), self._callbacks, self._calls)
        self._handle = BatchHandle(self.id, backend=backend)
        return self._handle

    async def astart(self) -> BatchHandle:
        """See :meth:`start`."""
        return await sync_to_async(self.start)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self._handle is None:
            self.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None and self._handle is None:
            await self.astart()

    def __repr__(self) -> str:
        return f"<Batch {self.name!r}: {len(self._calls):,} calls>"

    def _add(self, calls: list[Columns]) -> list[NodeKey[Any]]:
        from . import rows

        if self._handle is not None:
            return self._handle._add(calls)
        first = len(self._calls)
        self._calls += calls
        return [NodeKey(rows.call_node_id(first + place)) for place in range(len(calls))]
