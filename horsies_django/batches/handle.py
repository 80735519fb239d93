"""A handle on one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.dry_run import is_dry
from ..core.workflow_status import WorkflowTaskStatus
from ..enqueue.nodes import NodeKey
from ..workflows.handle import WorkflowHandle
from .calls import Columns, NodeColumns, nodes_of_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How many calls of a batch there are, and how they stand. Callbacks do not count."""

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
    """One batch, by its id. Costs no query until asked, and can be rebuilt from the id anywhere.

    It has all that the handle of a workflow has: ``status()``, ``get()``, ``results()``, ``retry()``, ``cancel()``,
    ``pause()`` and ``resume()``. Its value is the list of the calls' values, in the order in which they were added.
    """

    def __init__(self, id: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
        super().__init__(id, backend=backend)
        self._calls = NodeColumns(backend, self.id)

    def __repr__(self) -> str:
        return f"BatchHandle({str(self.id)!r})"

    def progress(self) -> BatchProgress:
        """Return how many calls there are and how they stand: one statement, however many. All are 0 of no batch."""
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
        """Add a call, while any other of the batch has not ended; return what :meth:`result_for` takes.

        A part of the current transaction. A body of the batch may do so too: then there is one that has not ended.
        Raises BatchEnded once all have, LookupError if there is no such batch, InvalidTask for what is no task, or has
        options that are for one send alone, TypeError or ValueError for arguments that don't fit.
        """
        (key,) = self._add([self._calls.node_of_call(task, args, kwargs)])
        return key

    def add_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> list[NodeKey[Any]]:
        """Add a call for each dict of keyword arguments, all of them or none. See :meth:`add`."""
        return self._add(nodes_of_calls(self._calls, task, calls))

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

        names = map(rows.call_node_id, range(len(calls))) if is_dry() else rows.add(self._database, self.id, calls)
        return [NodeKey(name) for name in names]
