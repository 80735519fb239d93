"""What of a workflow goes to the engine: plain values, no functions, no nodes.

A node is its ``index``, its place in the list given. Everything is what JSON can hold, but for datetimes and durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

#: The node that a parameter is given from; of several, a list of what they give.
SourceIndex: TypeAlias = int | tuple[int, ...]


#: The columns of a call that a node keeps until its task is sent.
TASK_COLUMNS: Final = (
    "task_name",
    "queue_name",
    "backend",
    "priority",
    "is_async",
    "rich",
    "max_retries",
    "retry_policy",
    "timeout",
    "retention",
    "retention_by_state",
    "good_until",
    "metadata",
)

#: The same, and the key of the limit by key that it has with its arguments.
CALL_COLUMNS: Final = (*TASK_COLUMNS, "limit_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBlueprint:
    """A node. Its columns from ``task_name`` to ``limit_key`` are those of its task's row, as a send would have them.

    The nodes of subworkflows, sleeps and events have no ``task_name``.
    """

    index: int
    node_id: str
    kind: str
    task_name: str | None = None
    backend: str
    queue_name: str
    priority: int
    is_async: bool = False
    rich: bool
    kwargs: str = "{}"
    max_retries: int = 0
    retry_policy: Mapping[str, Any] | None = None
    timeout: float | None = None
    retention: timedelta | None = None
    retention_by_state: Mapping[str, float] | None = None
    good_until: datetime | None = None
    metadata: Mapping[str, Any] | None = None
    limit_key: str | None = None
    waits_for: tuple[int, ...] = ()
    dependents: tuple[int, ...] = ()
    args_from: Mapping[str, SourceIndex] = field(default_factory=dict)
    values_from: Mapping[str, SourceIndex] = field(default_factory=dict)
    ctx_from: tuple[int, ...] | None = None
    join: str
    min_success: int | None = None
    allow_failed_deps: bool = False
    run_when: str | None = None
    skip_when: str | None = None
    #: Of a map: the node that gives the list, and the parameter that takes an item.
    over: int | None = None
    param: str | None = None
    #: Of a sleep: one of the two.
    seconds: float | None = None
    until: datetime | None = None
    #: Of an event; the time-out in seconds.
    event_name: str | None = None
    event_timeout: float | None = None
    #: Of a subworkflow, whose parameters are its kwargs.
    definition_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowBlueprint:
    """A workflow. ``queue_name`` and ``priority`` are its own, which its nodes have already, or None."""

    name: str
    definition_key: str | None
    on_error: str
    output_index: int | None
    success_policy: list[dict[str, list[int]]] | None
    good_until: datetime | None
    unique_key: str | None
    backend: str
    queue_name: str | None
    priority: int | None
    nodes: tuple[NodeBlueprint, ...]
