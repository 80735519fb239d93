"""The node table on a workflow's page: one line per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ...core.durations import format_duration
from ...core.workflow_status import NodeKind
from ...models import Workflow
from ...ops.payload_view.contents import decode
from ...workflows.error_codes import WorkflowCode
from ..formatting import format_time
from ..graph.boxes import GraphNode
from ..graph.labels import KINDS, status_label
from .node_rows import valid_indexes
from .node_state_text import node_state_text

#: Maximum number of dependencies that are named.
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A line of the node table, as text."""

    index: int
    node_id: str
    kind: str
    status: str
    state: str
    task: str
    address: str
    attempts: str
    began: str
    took: str
    waited: str
    why: str
    waits_for: tuple[tuple[int, str], ...]
    more: int
    error_code: str
    is_conditional: bool
    retry: str


class NodeTable:
    """Builds lines from rows. ``address`` returns the URL of a node's details, ``retry`` that of its retry."""

    def __init__(
        self,
        workflow: Workflow,
        nodes: Sequence[GraphNode],
        now: datetime | None,
        address: Callable[[str, int, int, UUID | None], str],
        retry: Callable[[int], str] | None,
    ) -> None:
        self._workflow = workflow
        self._labels = {node.position: node.label for node in nodes}
        self._now = now
        self._address = address
        self._retry = retry

    def line(self, row: Mapping[str, Any]) -> NodeLine:
        """Return the line of a row."""
        sources = valid_indexes(decode(row["waits_text"]))
        is_over = row["status"] in ("SKIPPED", "PENDING", "READY")
        began, ended = row["started_at"], row["completed_at"]
        waited = elapsed(began, row["task__started_at"])
        return NodeLine(
            index=row["task_index"],
            node_id=row["node_id"],
            kind=str(KINDS.get(row["kind"], "")),
            status=row["status"].lower(),
            state=status_label(row["status"]),
            task=row["task_name"] or row["definition_key"] or row["event_name"] or "",
            address=self._address(row["kind"], row["pk"], row["task_index"], row["task_id"]),
            attempts=format_attempts(row),
            began=format_time(began, exactly=False),
            took="" if is_over else format_duration(elapsed(began, ended or self._now)),
            waited=format_duration(waited) if row["kind"] == NodeKind.TASK and waited else "",
            why=node_state_text(self._workflow, row),
            waits_for=tuple((source, self._labels.get(source, f"#{source}")) for source in sources[:_MAX_NAMED]),
            more=max(0, len(sources) - _MAX_NAMED),
            error_code=row["error_code"] or (row["task__error_code"] if row["completed_at"] is None else "") or "",
            is_conditional=row["run_when"] is not None or row["skip_when"] is not None,
            retry=self._retry(row["task_index"]) if self._retry and _can_retry(row) and row["task_index"] >= 0 else "",
        )


def _can_retry(row: Mapping[str, Any]) -> bool:
    """Return whether the node failed, or was skipped for a reason other than its own condition."""
    is_skipped: bool = row["status"] == "SKIPPED" and row["error_code"] != WorkflowCode.CONDITION_NOT_MET
    return row["status"] == "FAILED" or is_skipped


def elapsed(began: datetime | None, ended: datetime | None) -> timedelta | None:
    """Return the time between two times, if both are known."""
    return ended - began if began and ended else None


def format_attempts(row: Mapping[str, Any]) -> str:
    """Return the attempts of its task, made and allowed."""
    if not row["task__attempt"]:
        return ""
    return f"{row['task__attempt']}/{max(row['task__attempt'], (row['task__max_retries'] or 0) + 1)}"
