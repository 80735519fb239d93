"""A handle on one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.current_task import is_dry_run
from ..core.workflow_status import WorkflowTaskStatus
from ..enqueue.nodes import NodeKey
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
