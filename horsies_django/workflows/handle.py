"""A handle on one run of a workflow."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Q, TextField
from django.db.models.functions import Cast

from ..compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from ..dry import is_dry
from ..exceptions import PayloadMismatch
from ..ids import uuid7
from ..results import RetrievalCode, TaskError, TaskResult
from . import feeding
from .blueprint import WorkflowBlueprint
from .codes import STOPPED_BY, WorkflowCode
from .nodes import NodeKey, NodeRef
from .states import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from ..models.workflow import WorkflowQuerySet

T = TypeVar("T")
V = TypeVar("V")

_CODES = {WorkflowStatus.PAUSED: WorkflowCode.WORKFLOW_PAUSED, **STOPPED_BY}


class WorkflowHandle(Generic[T]):
    """One run of a workflow, by its id. Can be rebuilt from the id anywhere."""

    def __init__(self, id: UUID | str, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
        self.id = id if isinstance(id, UUID) else UUID(id)
        self.backend = backend

    def __repr__(self) -> str:
        return f"WorkflowHandle({str(self.id)!r})"

    def status(self) -> WorkflowStatus | None:
        """Return the status now, None if there is no such workflow."""
        status = self._rows().values_list("status", flat=True).first()
        return WorkflowStatus(status) if status else None

    def get(self, timeout: float | None = None) -> TaskResult[T, TaskError[Any]]:
        """Wait for the workflow to end, at most ``timeout`` seconds, and return its result (W-72)."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            columns = ("status", Cast("result", TextField()), Cast("error", TextField()))
            row = self._rows().values_list(*columns).first()
            if row is None:
                return _error(RetrievalCode.TASK_NOT_FOUND, f"There is no workflow {self.id}.")
            status, result, error = row
            if status == WorkflowStatus.COMPLETED:
                return TaskResult(ok=self._output(result))
            if status == WorkflowStatus.FAILED:
                return TaskResult(err=TaskError.from_json(json.loads(error)))
            if status in _CODES:
                if error is not None:
                    return TaskResult(err=TaskError.from_json(json.loads(error)))
                return _error(_CODES[WorkflowStatus(status)], f"The workflow is {status}.")
            if time.monotonic() >= deadline:
                return _error(RetrievalCode.WAIT_TIMEOUT, f"The workflow had not ended after {timeout} seconds.")
            time.sleep(0.02)

    def tasks(self) -> dict[str, WorkflowTaskStatus]:
        """Return the status of each node, by id."""
        from ..models import WorkflowTask

        nodes = WorkflowTask.objects.using(self._database).filter(workflow=self.id).order_by("task_index")
        return {node_id: WorkflowTaskStatus(status) for node_id, status in nodes.values_list("node_id", "status")}

    def result_for(self, node: NodeRef[V]) -> TaskResult[V, TaskError[Any]]:
        """Return a node's result; RESULT_NOT_READY until it has ended. Raises KeyError for a node that is not there."""
        results = self._results(node_id=_id_of(node))
        if not results:
            raise KeyError(f"There is no node {_id_of(node)!r} in workflow {self.id}.")
        return results[_id_of(node)]

    def results(self) -> dict[str, TaskResult[Any, TaskError[Any]]]:
        """Return the results of the nodes that have ended, by id."""
        return self._results(completed_at__isnull=False)

    def pause(self) -> bool:
        """Begin nothing more until :meth:`resume`; what runs comes to its end. Return whether it was running."""
        from . import control

        return control.pause(self._database, self.id)

    def resume(self) -> bool:
        """Go on; return whether it was paused. Not below a workflow that does not run."""
        from . import control

        return control.resume(self._database, self.id)

    def cancel(self) -> bool:
        """End it; what runs comes to its end, nothing else begins. Return whether it had not ended."""
        from . import control

        return control.cancel(self._database, self.id)

    def retry(self, node: NodeRef[Any] | None = None) -> bool:
        """Run its failed and skipped nodes again, or one of them and what was skipped for it (P-06).

        It may have ended, or be paused; with a node it may run, if nothing has followed from how the node ended. What
        is above it and has ended with it goes on too. Returns whether there was such a node.
        """
        from . import control

        return control.retry(self._database, self.id, None if node is None else _id_of(node))

    def send_event(self, name: str, payload: Any = None) -> bool:
        """Send an event to the nodes that wait for it, now or later (P-08). Return whether it had not ended."""
        from . import control

        return control.send_event(self._database, self.id, name, payload)

    def _output(self, text: str) -> Any:
        """Read the result of a workflow: the value of its output, else results by node (W-51)."""
        from ..models import WorkflowTask

        rows = WorkflowTask.objects.using(self._database).filter(workflow=self.id)
        output = rows.filter(task_index=F("workflow__output_index")).values_list("rich", flat=True).first()
        if output is not None:
            return feeding.read(text, output).ok
        stored = json.loads(text)["ok"]
        rich = dict(rows.filter(node_id__in=stored or ()).values_list("node_id", "rich"))
        return stored and {node_id: feeding.read(json.dumps(one), rich[node_id]) for node_id, one in stored.items()}

    def _results(self, **which: Any) -> dict[str, TaskResult[Any, TaskError[Any]]]:
        from ..models import WorkflowTask

        nodes = WorkflowTask.objects.using(self._database).filter(workflow=self.id, **which).order_by("task_index")
        rows = nodes.values_list("node_id", Cast("result", TextField()), "rich")
        return {node_id: _read(text, rich) for node_id, text, rich in rows}

    @property
    def _database(self) -> str:
        backend: Any = task_backends[self.backend]
        return str(backend.config.database)

    def _rows(self) -> WorkflowQuerySet:
        from ..models import Workflow

        return Workflow.objects.using(self._database).filter(pk=self.id)


def start(blueprint: WorkflowBlueprint, workflow_id: UUID | None) -> UUID:
    """Insert a run and return its id.

    The one that is there already under ``workflow_id`` (W-70), or a live one with its ``unique_key``, stands in for it.
    """
    from ..models import Workflow
    from .engine import starting

    backend: Any = task_backends[blueprint.backend]
    database = str(backend.config.database)
    key = workflow_id or uuid7()
    if is_dry():
        return key
    try:
        with transaction.atomic(using=database):
            starting.insert(database, blueprint, key)
    except IntegrityError:
        workflows = Workflow.objects.using(database)
        held = Q(pk__in=()) if blueprint.unique_key is None else Q(unique_key=blueprint.unique_key)
        known = workflows.filter(pk=key).first() or workflows.live().filter(held).first()
        if known is None:
            raise
        if known.name != blueprint.name:
            raise PayloadMismatch(known.pk, ["name"]) from None
        return UUID(str(known.pk))
    return key


def _id_of(node: NodeRef[Any]) -> str:
    if isinstance(node, str):
        return node
    return node.node_id if isinstance(node, NodeKey) else node.key.node_id


def _read(text: str | None, rich: bool) -> TaskResult[Any, TaskError[Any]]:
    if text is None:
        return _error(RetrievalCode.RESULT_NOT_READY, "The node has not ended.")
    return feeding.read(text, rich)


def _error(code: str, message: str) -> TaskResult[Any, TaskError[Any]]:
    return TaskResult(err=TaskError(error_code=code, message=message))
