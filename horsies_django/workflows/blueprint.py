"""The blueprint of a workflow, which goes to the engine: plain values, without functions or nodes.

A node is its ``index``, its position in the list given. JSON can hold every value except the datetimes and durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

#: The node that fills a parameter; with several, the parameter gets the list of their values.
SourceIndex: TypeAlias = int | tuple[int, ...]


#: The columns of a task that its node stores until the task is enqueued.
TASK_COLUMNS: Final = (
    "task_name",
    "queue_name",
    "backend",
    "priority",
    "is_async",
    "typed_payload",
    "max_retries",
    "retry_policy",
    "timeout",
    "retention",
    "retention_by_state",
    "good_until",
    "metadata",
)

#: The same, and the key of the concurrency limit for its arguments.
CALL_COLUMNS: Final = (*TASK_COLUMNS, "limit_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBlueprint:
    """A node. Its columns from ``task_name`` to ``limit_key`` are those that a sent task would have.

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
    typed_payload: bool
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
    #: Maps: the node that gives the list, and the parameter that takes an item.
    over: int | None = None
    param: str | None = None
    #: Sleeps: one of the two.
    seconds: float | None = None
    until: datetime | None = None
    #: Events; the time-out is in seconds.
    event_name: str | None = None
    event_timeout: float | None = None
    #: Subworkflows, whose parameters are in ``kwargs``.
    definition_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowBlueprint:
    """A workflow. ``queue_name`` and ``priority`` are the workflow's own, or None; its nodes have inherited them."""

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
