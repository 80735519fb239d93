"""A handle on one run of a workflow."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import TextField
from django.db.models.functions import Cast

from ..compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from ..dry import is_dry
from ..exceptions import PayloadMismatch
from ..ids import uuid7
from ..results import RetrievalCode, TaskError, TaskResult
from .blueprint import WorkflowBlueprint
from .codes import WorkflowCode
from .states import WorkflowStatus, WorkflowTaskStatus

if TYPE_CHECKING:
    from ..models.workflow import WorkflowQuerySet

T = TypeVar("T")

_CODES = {
    WorkflowStatus.PAUSED: WorkflowCode.WORKFLOW_PAUSED,
    WorkflowStatus.CANCELLED: WorkflowCode.WORKFLOW_CANCELLED,
    WorkflowStatus.EXPIRED: WorkflowCode.WORKFLOW_EXPIRED,
}


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
                return TaskResult(ok=json.loads(result)["ok"])
            if status == WorkflowStatus.FAILED:
                return TaskResult(err=TaskError.from_json(json.loads(error)))
            if status in _CODES:
                return _error(_CODES[WorkflowStatus(status)], f"The workflow is {status}.")
            if time.monotonic() >= deadline:
                return _error(RetrievalCode.WAIT_TIMEOUT, f"The workflow had not ended after {timeout} seconds.")
            time.sleep(0.02)

    def tasks(self) -> dict[str, WorkflowTaskStatus]:
        """Return the status of each node, by id."""
        from ..models import WorkflowTask

        nodes = WorkflowTask.objects.using(self._database).filter(workflow=self.id).order_by("task_index")
        return {node_id: WorkflowTaskStatus(status) for node_id, status in nodes.values_list("node_id", "status")}

    @property
    def _database(self) -> str:
        backend: Any = task_backends[self.backend]
        return str(backend.config.database)

    def _rows(self) -> WorkflowQuerySet:
        from ..models import Workflow

        return Workflow.objects.using(self._database).filter(pk=self.id)


def start(blueprint: WorkflowBlueprint, workflow_id: UUID | None) -> UUID:
    """Insert a run and return its id; that of the one which is there already under ``workflow_id`` (W-70)."""
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
        known = Workflow.objects.using(database).filter(pk=key).values_list("name", flat=True).first()
        if workflow_id is None or known is None:
            raise
        if known != blueprint.name:
            raise PayloadMismatch(key, ["name"]) from None
    return key


def _error(code: str, message: str) -> TaskResult[Any, TaskError[Any]]:
    return TaskResult(err=TaskError(error_code=code, message=message))
