"""Snapshots of workflows for waiting handles: the columns that make up a result."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, Q, TextField
from django.db.models.functions import Cast

from ..core.backends import reads_typed
from ..core.results import RetrievalCode
from ..core.workflow_errors import STOPPED_BY, WorkflowCode
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES, WorkflowStatus
from ..enqueue import result_reader
from ..enqueue.result_reader import Result

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

    def as_result(self) -> Result:
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
                {name: result_reader.restore(one, name in self.typed_nodes) for name, one in by_node.items()}
            )
        return result


def read_workflows(database: str, keys: Sequence[UUID]) -> Mapping[UUID, WorkflowSnapshot]:
    """Read snapshots of workflows: one statement, and more only for those that have ended."""
    from ..models import Workflow

    columns = ("pk", "status", "output_index", Cast("result", TextField()), Cast("error", TextField()))
    rows = Workflow.objects.using(database).filter(pk__in=keys).values_list(*columns)
    found = {key: WorkflowSnapshot(*values) for key, *values in rows}
    typed = _typed_sources(database, found)
    return {key: row._replace(typed_nodes=frozenset(typed[key])) if key in typed else row for key, row in found.items()}


def _typed_sources(database: str, found: Mapping[UUID, WorkflowSnapshot]) -> Mapping[UUID, set[str]]:
    """Return the ids of the nodes with typed values that make up the results, by workflow."""
    from ..models import WorkflowTask

    completed = {key: row for key, row in found.items() if row.status == WorkflowStatus.COMPLETED}
    with_output = [key for key, row in completed.items() if row.output_index is not None]
    without = [key for key, row in completed.items() if row.output_index is None]
    failed = {key: name for key, row in found.items() if (name := _failed_node(row.error)) is not None}
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
