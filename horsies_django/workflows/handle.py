"""A handle on one run of a workflow, and the snapshots that it waits for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import F, Q, TextField
from django.db.models.functions import Cast

from ..core.backends import config_of, reads_typed
from ..core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ..core.ids import parse_uuid
from ..core.operations import log_operation
from ..core.results import RetrievalCode, TaskError, TaskResult
from ..core.workflow_errors import STOPPED_BY, WorkflowCode, shown
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus
from ..enqueue import result_reader, wait
from ..enqueue.nodes import Node, NodeKey, NodeRef, event_name_error

if TYPE_CHECKING:
    from ..models.workflow import WorkflowQuerySet

T = TypeVar("T")
V = TypeVar("V")

#: How many known ids the error for an unknown node lists.
_MAX_NAMED: Final = 10


_CODES = {WorkflowStatus.PAUSED: WorkflowCode.WORKFLOW_PAUSED, **STOPPED_BY}


class WorkflowSnapshot(NamedTuple):
    """The state of a workflow. ``typed_nodes`` are the ids of the nodes in its result that have typed values."""

    status: str
    output_index: int | None
    result: str | None
    error: str | None
    typed_nodes: frozenset[str] = frozenset()

    @property
    def is_final(self) -> bool:
        """Whether it has ended, or is paused, which may last for ever."""
        return self.status in WORKFLOW_TERMINAL_STATES or self.status == WorkflowStatus.PAUSED

    def as_result(self) -> result_reader.Result:
        """Return the result of a workflow that has ended or is paused."""
        status = WorkflowStatus(self.status)
        text = self.result if status == WorkflowStatus.COMPLETED else self.error
        if text is None or text == "null":
            if status in _CODES:
                return result_reader.error(_CODES[status], f"The workflow is {status}.")
            return result_reader.error(
                RetrievalCode.RESULT_NOT_AVAILABLE, f"The workflow is {status} and kept no result."
            )
        if status != WorkflowStatus.COMPLETED:
            return result_reader.read(f'{{"err":{text}}}', bool(self.typed_nodes))
        result = result_reader.read(text, self.output_index is not None and bool(self.typed_nodes))
        if self.output_index is None and isinstance(by_node := result.ok, dict):
            return result_reader.ok(
                {name: result_reader.restore(stored, name in self.typed_nodes) for name, stored in by_node.items()}
            )
        return result


def read_workflows(database: str, keys: Sequence[UUID]) -> Mapping[UUID, WorkflowSnapshot]:
    """Read snapshots of workflows: one statement, and more only for those that have ended."""
    from ..models import Workflow

    columns = ("pk", "status", "output_index", Cast("result", TextField()), Cast("error", TextField()))
    rows = Workflow.objects.using(database).filter(pk__in=keys).values_list(*columns)
    snapshots = {key: WorkflowSnapshot(*values) for key, *values in rows}
    typed = _typed_sources(database, snapshots)
    return {key: each._replace(typed_nodes=frozenset(typed[key])) for key, each in snapshots.items()}


def _typed_sources(database: str, snapshots: Mapping[UUID, WorkflowSnapshot]) -> Mapping[UUID, set[str]]:
    """Return the ids of the nodes with typed values that make up the results, by workflow."""
    from ..models import WorkflowTask

    completed = [key for key, each in snapshots.items() if each.status == WorkflowStatus.COMPLETED]
    with_output = [key for key in completed if snapshots[key].output_index is not None]
    without = [key for key in completed if snapshots[key].output_index is None]
    failed = {key: name for key, each in snapshots.items() if (name := _failed_node(each.error)) is not None}
    typed: dict[UUID, set[str]] = defaultdict(set)
    # Three queries, since each has an index and the combination has none.
    for of, which in (
        (with_output, Q(task_index=F("workflow__output_index"))),
        (without, Q(dependents=[], map_index=None)),
        (failed, Q(node_id__in=set(failed.values()))),
    ):
        nodes = WorkflowTask.objects.using(database).filter(which, workflow__in=list(of), typed_payload=True)
        for key, node_id, backend in nodes.values_list("workflow_id", "node_id", "backend") if of else ():
            if failed.get(key, node_id) == node_id and reads_typed(backend, True):
                typed[key].add(node_id)
    return typed


def _failed_node(error: str | None) -> str | None:
    """Return the id of the node whose error the workflow has, if it is a node's."""
    stored: Any = json.loads(error or "null")
    name = stored.get("node_id") if isinstance(stored, dict) else None
    return name if isinstance(name, str) else None


class WorkflowHandle(Generic[T]):
    """One run of a workflow, by its id. Runs no query until asked, and can be rebuilt from the id anywhere.

    Methods that take a node accept the object, its :class:`~horsies_django.NodeKey` or its id. The handle that
    ``start()`` returns knows every node object of its workflow. A rebuilt handle knows only those with a ``node_id`` of
    their own; ``Workflow.key(node)`` returns the key of any other. ``node_ids`` maps node objects to their ids.

    ``replayed`` is True if the start inserted nothing, because there was a run with the same ``workflow_id`` or
    ``unique_key``.

    Raises ValueError for an invalid id, and InvalidTask for a ``backend`` that is not one of this package.
    """

    def __init__(
        self,
        id: UUID | str,
        *,
        backend: str = DEFAULT_TASK_BACKEND_ALIAS,
        node_ids: Mapping[Node[Any], str] | None = None,
        replayed: bool = False,
    ) -> None:
        self.id = parse_uuid(id)
        self._node_ids = node_ids or {}
        self.backend = backend
        self.replayed = replayed
        self._database = config_of(backend).database
        self._final: TaskResult[T, TaskError[Any]] | None = None

    def __repr__(self) -> str:
        return f"WorkflowHandle({str(self.id)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowHandle) and (self.id, self.backend) == (other.id, other.backend)

    def __hash__(self) -> int:
        return hash(self.id)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out node objects, which are the same in one process only: an unpickled handle is a rebuilt one."""
        return {**self.__dict__, "_node_ids": {}}

    def status(self) -> WorkflowStatus | None:
        """Return the current status, None if there is no such workflow."""
        status = self._rows().values_list("status", flat=True).first()
        return WorkflowStatus(status) if status else None

    def get(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """Wait for the workflow to end, at most ``timeout`` seconds, and return its result.

        None waits for ever, 0 looks once; any other value that is not a number of seconds raises ValueError. A paused
        workflow returns an err result at once, with ``WORKFLOW_PAUSED``. Otherwise it never raises, neither for a
        failed workflow nor for a database that is down: see :meth:`TaskHandle.get() <horsies_django.TaskHandle.get>`,
        which waits in the same way. The handle keeps only the result of a COMPLETED workflow, since any other may
        change.
        """
        deadline = wait.deadline_of(timeout)
        return self._final or self._result_from(
            wait.wait_for_end(read_workflows, self._database, self.id, deadline), timeout
        )

    def _watch_end(self) -> TaskResult[T, TaskError[Any]] | None:
        """Return the result if the workflow has ended, or is not there. If not, its end wakes tasks that wait for it.

        A paused workflow has not ended.
        """
        self._rows().live().filter(is_awaited=False).update(is_awaited=True)
        answer = wait.wait_for_end(read_workflows, self._database, self.id, wait.deadline_of(0))
        has_ended = answer is None or (
            isinstance(answer, WorkflowSnapshot) and answer.status in WORKFLOW_TERMINAL_STATES
        )
        return self._result_from(answer, 0) if has_ended else None

    async def aget(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """See :meth:`get`."""
        deadline = wait.deadline_of(timeout)
        return self._final or self._result_from(
            await wait.await_end(read_workflows, self._database, self.id, deadline), timeout
        )

    def value(self, timeout: float | None = None) -> T:
        """Return the ok value, or raise ``TaskFailed``, or ``WaitTimeout`` (a TimeoutError). See :meth:`get`."""
        return self.get(timeout).unwrap()

    async def avalue(self, timeout: float | None = None) -> T:
        """See :meth:`value`."""
        return (await self.aget(timeout)).unwrap()

    def tasks(self, nodes: Iterable[NodeRef[Any]] | None = None) -> dict[str, WorkflowTaskStatus]:
        """Return the status of each node, by id; of ``nodes`` only, if given. Raises as :meth:`result_for` does."""
        from ..models import WorkflowTask

        rows = WorkflowTask.objects.using(self._database).filter(workflow=self.id).order_by("task_index")
        states = {node_id: WorkflowTaskStatus(status) for node_id, status in rows.values_list("node_id", "status")}
        return self._select(states, nodes)

    @overload
    def result_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError[Any]]: ...
    @overload
    def result_for(self, node: str) -> TaskResult[Any, TaskError[Any]]: ...
    def result_for(self, node: NodeRef[Any]) -> TaskResult[Any, TaskError[Any]]:
        """Return a node's result; RESULT_NOT_READY until the node has ended.

        Raises KeyError if there is no such node or workflow, TypeError for a value that does not name a node, and
        ValueError for a node object whose id this handle does not know.
        """
        return self._result_of(self._id_of(node))

    def results(self, nodes: Iterable[NodeRef[Any]] | None = None) -> dict[str, TaskResult[Any, TaskError[Any]]]:
        """Return the results of the nodes that have ended, by id; of ``nodes`` only, if given.

        Raises as :meth:`result_for` does.
        """
        return self._select(self._results(completed_at__isnull=False), nodes)

    def pause(self) -> bool:
        """Start nothing more until :meth:`resume`; running tasks come to their end. Return whether it was running."""
        return self._do("pause")

    def resume(self) -> bool:
        """Resume the workflow; return whether it was paused. Does nothing below a workflow that does not run."""
        return self._do("resume")

    def cancel(self, *, include_running: bool = False) -> bool:
        """Cancel it: nothing else starts, running tasks come to their end. Return whether it was live.

        With ``include_running`` the running tasks are asked to stop, as cancelled single tasks are. This also works on
        a workflow that was cancelled without it; it then returns whether there was anything to cancel.
        """
        return self._do("cancel", include_running=include_running)

    def retry(self, node: NodeRef[Any] | None = None) -> bool:
        """Run all its failed and skipped nodes again; with ``node``, only that one and those skipped because of it.

        The workflow may have ended, or be paused. With a node it may also run, as long as the nodes that wait for that
        one are undecided. Ended workflows above go on too. Return whether there was a node to retry. Raises KeyError if
        there is no such node.
        """
        from . import control

        node_id = None if node is None else self._id_of(node)
        count = control.retry(self._database, self.id, None if node_id is None else Q(node_id=node_id))
        if not count and node_id is not None and node_id not in self.tasks():
            raise self._no_such_node(node_id)
        nodes = count if node_id is None else None
        log_operation("workflow.retry", int(bool(count)), ids=[self.id], node=node_id, nodes=nodes)
        return bool(count)

    def _do(self, verb: Literal["pause", "resume", "cancel"], **options: bool) -> bool:
        from . import control

        is_done: bool = getattr(control, verb)(self._database, self.id, **options)
        log_operation(f"workflow.{verb}", int(is_done), ids=[self.id])
        return is_done

    def send_event(self, name: str, payload: Any = None) -> bool:
        """Send an event to the nodes that wait for it, now or later. Return whether the workflow was live.

        Raises ValueError for an invalid name, TypeError or ValueError for a payload that JSON can't hold, and
        InvalidTask if the backend of the workflow is no longer in the settings.
        """
        from . import control

        if problem := event_name_error(name):
            raise ValueError(f"the name of an event is {problem}")
        return control.send_event(self._database, self.id, name, payload)

    async def astatus(self) -> WorkflowStatus | None:
        """See :meth:`status`."""
        return await sync_to_async(self.status)()

    async def atasks(self, nodes: Iterable[NodeRef[Any]] | None = None) -> dict[str, WorkflowTaskStatus]:
        """See :meth:`tasks`."""
        return await sync_to_async(self.tasks)(nodes)

    @overload
    async def aresult_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError[Any]]: ...
    @overload
    async def aresult_for(self, node: str) -> TaskResult[Any, TaskError[Any]]: ...
    async def aresult_for(self, node: NodeRef[Any]) -> TaskResult[Any, TaskError[Any]]:
        """See :meth:`result_for`."""
        return await sync_to_async(self._result_of)(self._id_of(node))

    async def aresults(self, nodes: Iterable[NodeRef[Any]] | None = None) -> dict[str, TaskResult[Any, TaskError[Any]]]:
        """See :meth:`results`."""
        return await sync_to_async(self.results)(nodes)

    async def apause(self) -> bool:
        """See :meth:`pause`."""
        return await sync_to_async(self.pause)()

    async def aresume(self) -> bool:
        """See :meth:`resume`."""
        return await sync_to_async(self.resume)()

    async def acancel(self, *, include_running: bool = False) -> bool:
        """See :meth:`cancel`."""
        return await sync_to_async(self.cancel)(include_running=include_running)

    async def aretry(self, node: NodeRef[Any] | None = None) -> bool:
        """See :meth:`retry`."""
        return await sync_to_async(self.retry)(node)

    async def asend_event(self, name: str, payload: Any = None) -> bool:
        """See :meth:`send_event`."""
        return await sync_to_async(self.send_event)(name, payload)

    def _result_from(
        self, answer: wait.Answer[WorkflowSnapshot], timeout: float | None
    ) -> TaskResult[T, TaskError[Any]]:
        """Return the result for what a wait returned, and keep it if it is final."""
        if isinstance(answer, wait.NoAnswer):
            return result_reader.timed_out("workflow", timeout, None)
        if not isinstance(answer, WorkflowSnapshot):
            return result_reader.not_found(f"workflow {self.id}", answer)
        if not answer.is_final:
            return result_reader.timed_out("workflow", timeout, answer.status)
        result = answer.as_result()
        if answer.status == WorkflowStatus.COMPLETED:
            self._final = result
        return result

    def _result_of(self, node_id: str) -> TaskResult[Any, TaskError[Any]]:
        results = self._results(node_id=node_id)
        if not results:
            raise self._no_such_node(node_id)
        return results[node_id]

    def _results(self, **which: Any) -> dict[str, TaskResult[Any, TaskError[Any]]]:
        from ..models import WorkflowTask

        nodes = WorkflowTask.objects.using(self._database).filter(workflow=self.id, **which).order_by("task_index")
        rows = nodes.values_list("node_id", Cast("result", TextField()), "backend", "typed_payload")
        return {node_id: _read(text, reads_typed(backend, typed)) for node_id, text, backend, typed in rows}

    def _select(self, results: dict[str, V], nodes: Iterable[NodeRef[Any]] | None) -> dict[str, V]:
        """Return the entries of these nodes, in their order, without those of nodes that have none."""
        if nodes is None:
            return results
        ids = [self._id_of(node) for node in nodes]
        missing = [node_id for node_id in ids if node_id not in results]
        tasks = self.tasks() if missing else {}
        if unknown := [node_id for node_id in missing if node_id not in tasks]:
            raise self._no_such_node(unknown[0])
        return {node_id: results[node_id] for node_id in ids if node_id in results}

    def _no_such_node(self, node_id: str) -> KeyError:
        node_ids = list(self.tasks())
        if not node_ids and not self._rows().exists():
            return KeyError(f"There is no workflow {self.id}.")
        allowed = ", ".join(map(repr, node_ids[:_MAX_NAMED])) + (", …" if node_ids[_MAX_NAMED:] else "")
        return KeyError(f"There is no node {node_id!r} in workflow {self.id}; there are: {allowed or 'none'}.")

    def _id_of(self, node: NodeRef[Any]) -> str:
        if isinstance(node, str):
            return node
        if isinstance(node, NodeKey):
            return node.node_id
        if isinstance(node, Node):
            return self._node_ids.get(node) or node.key.node_id
        raise TypeError(f"node is {shown(node)}; allowed: a node, its NodeKey, or its id.")

    def _rows(self) -> WorkflowQuerySet:
        from ..models import Workflow

        return Workflow.objects.using(self._database).filter(pk=self.id)


def _read(text: str | None, typed: bool) -> TaskResult[Any, TaskError[Any]]:
    if text is None:
        return result_reader.error(RetrievalCode.RESULT_NOT_READY, "The node has not ended.")
    return result_reader.read(text, typed)
