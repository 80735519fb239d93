"""The table of nodes on the page of a workflow: each node as a line, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ...core.durations import lasting
from ...core.workflow_status import NodeKind
from ...models import Workflow
from ...ops.payload_view.contents import read
from ...workflows.error_codes import WorkflowCode
from ..formatting import at
from ..graph.boxes import Node
from ..graph.labels import KINDS, word_of
from .node_rows import places_in
from .node_state_text import why

#: Names of what a node waits for.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table of nodes, in words."""

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


class Teller:
    """Makes lines of rows. ``address`` says where one reads more of a node, ``retry`` where one retries it."""

    def __init__(
        self,
        workflow: Workflow,
        nodes: Sequence[Node],
        now: datetime | None,
        address: Callable[[str, int, int, UUID | None], str],
        retry: Callable[[int], str] | None,
    ) -> None:
        self._workflow = workflow
        self._labels = {node.place: node.label for node in nodes}
        self._now = now
        self._address = address
        self._retry = retry

    def line(self, row: Mapping[str, Any]) -> Line:
        """Return the line of a row that has the columns of the table."""
        sources = places_in(read(row["waits_text"]))
        is_over = row["status"] in ("SKIPPED", "PENDING", "READY")
        began, ended = row["started_at"], row["completed_at"]
        waited = between(began, row["task__started_at"])
        return Line(
            index=row["task_index"],
            node_id=row["node_id"],
            kind=str(KINDS.get(row["kind"], "")),
            status=row["status"].lower(),
            state=word_of(row["status"]),
            task=row["task_name"] or row["definition_key"] or row["event_name"] or "",
            address=self._address(row["kind"], row["pk"], row["task_index"], row["task_id"]),
            attempts=attempts_of(row),
            began=at(began, exactly=False),
            took="" if is_over else lasting(between(began, ended or self._now)),
            waited=lasting(waited) if row["kind"] == NodeKind.TASK and waited else "",
            why=why(self._workflow, row),
            waits_for=tuple((source, self._labels.get(source, f"#{source}")) for source in sources[:_NAMED]),
            more=max(0, len(sources) - _NAMED),
            error_code=row["error_code"] or (row["task__error_code"] if row["completed_at"] is None else "") or "",
            is_conditional=row["run_when"] is not None or row["skip_when"] is not None,
            retry=self._retry(row["task_index"]) if self._retry and _is_bad(row) and row["task_index"] >= 0 else "",
        )


def _is_bad(row: Mapping[str, Any]) -> bool:
    """Whether it failed, or was skipped and not by its own condition."""
    return row["status"] in ("FAILED", "SKIPPED") and row["error_code"] != WorkflowCode.CONDITION_NOT_MET


def between(began: datetime | None, ended: datetime | None) -> timedelta | None:
    """Return the time from one to the other, if there are both."""
    return ended - began if began and ended else None


def attempts_of(row: Mapping[str, Any]) -> str:
    """Return how often its task was tried, of how often it may be."""
    if not row["task__attempt"]:
        return ""
    return f"{row['task__attempt']}/{max(row['task__attempt'], (row['task__max_retries'] or 0) + 1)}"
