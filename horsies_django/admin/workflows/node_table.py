"""The node table on a workflow's page: one line per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.utils.safestring import SafeString

from ...models import Workflow
from ...ops.payload_view.contents import decode
from ...workflows.error_codes import WorkflowCode
from ..formatting import format_time
from ..graph.boxes import GraphNode
from ..graph.labels import KINDS, status_label
from ..graph.node_times import NodeTimes, Run
from ..graph.time_bar import time_bar
from .node_rows import valid_indexes
from .node_runs import attempt_runs, retried_tasks, runs_of
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
    is_retried: bool
    began: str
    time: SafeString | str
    bar: SafeString | str
    why: str
    waits_for: tuple[tuple[int, str], ...]
    more: int
    error_code: str
    is_conditional: bool
    retry: str

    @property
    def has_other_page(self) -> bool:
        """Whether its address is not that of its details on the same page."""
        return not self.address.startswith("?node=")


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
        self._runs = {node.key: node.runs for node in nodes}
        self._now = now
        self._address = address
        self._retry = retry

    def lines(self, rows: Sequence[Mapping[str, Any]]) -> list[NodeLine]:
        """Return the lines of rows. Takes one statement if items of maps among them were retried."""
        unknown = [row for row in rows if row["pk"] not in self._runs]
        attempts = attempt_runs(self._workflow._state.db, retried_tasks(unknown))
        self._runs |= {row["pk"]: runs_of(row, self._now, attempts) for row in unknown}
        return [self._line(row, self._runs[row["pk"]]) for row in rows]

    def _line(self, row: Mapping[str, Any], runs: tuple[Run, ...] | None) -> NodeLine:
        sources = valid_indexes(decode(row["waits_text"]))
        is_over = row["status"] in ("SKIPPED", "PENDING", "READY")
        began = row["started_at"]
        times = None if is_over else NodeTimes.of(began, row["completed_at"], self._now, runs)
        return NodeLine(
            index=row["task_index"],
            node_id=row["node_id"],
            kind=str(KINDS.get(row["kind"], "")),
            status=row["status"].lower(),
            state=status_label(row["status"]),
            task=row["task_name"] or row["definition_key"] or row["event_name"] or "",
            address=self._address(row["kind"], row["pk"], row["task_index"], row["task_id"]),
            attempts=format_attempts(row),
            is_retried=(row["task__attempt"] or 0) > 1,
            began=format_time(began, exactly=False) if began else "",
            time=times.words(tag="span") if times else "",
            bar=time_bar(times),
            why=node_state_text(self._workflow, row),
            waits_for=tuple((source, self._labels.get(source, f"#{source}")) for source in sources[:_MAX_NAMED]),
            more=max(0, len(sources) - _MAX_NAMED),
            error_code=row["error_code"] or (row["task__error_code"] if row["completed_at"] is None else "") or "",
            is_conditional=row["run_when"] is not None or row["skip_when"] is not None,
            retry=self._retry(row["task_index"]) if self._retry and can_retry(row) and row["task_index"] >= 0 else "",
        )


def can_retry(row: Mapping[str, Any]) -> bool:
    """Return whether the node failed, or was skipped for a reason other than its own condition."""
    is_skipped: bool = row["status"] == "SKIPPED" and row["error_code"] != WorkflowCode.CONDITION_NOT_MET
    return row["status"] == "FAILED" or is_skipped


def format_attempts(row: Mapping[str, Any]) -> str:
    """Return the attempts of its task, made and allowed."""
    if not row["task__attempt"]:
        return ""
    return f"{row['task__attempt']}/{max(row['task__attempt'], (row['task__max_retries'] or 0) + 1)}"
