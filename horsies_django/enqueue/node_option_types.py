"""The options of nodes, as an editor completes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict

from ..core.retry import RetryPolicy
from ..core.task_options import Retention
from ..core.workflow_status import Join

if TYPE_CHECKING:
    from .nodes import Node, ResultOf
    from .workflow_context import WorkflowContext

#: Decides about a node, once, when it would become ready: ``run_when`` and ``skip_when``.
Condition = Callable[["WorkflowContext"], bool]


class StepOptions(TypedDict, total=False):
    """What every node takes.

    ``join`` says how many of the nodes that it waits for have to complete (with QUORUM: ``min_success``);
    ``allow_failed_deps`` lets it run although some have not; ``run_when`` and ``skip_when`` are conditions.
    """

    node_id: str | None
    waits_for: Node[Any] | Iterable[Node[Any]]
    allow_failed_deps: bool
    join: Join
    min_success: int | None
    run_when: Condition | None
    skip_when: Condition | None


class InputOptions(StepOptions, total=False):
    """What a node takes that has parameters.

    ``args_from`` gives a parameter the :class:`~horsies_django.TaskResult` of a node, ``values_from`` its ok value; of
    a list of nodes, a list. ``workflow_ctx_from`` are the nodes that the parameter ``workflow_ctx`` shows.
    """

    args_from: Mapping[str, Node[Any] | ResultOf | Iterable[Node[Any]]]
    values_from: Mapping[str, Node[Any] | Iterable[Node[Any]]]
    workflow_ctx_from: Node[Any] | Iterable[Node[Any]] | None


class TaskNodeOptions(InputOptions, total=False):
    """What the node of a task takes: its task's options, as ``with_options()`` has them, and those of a node."""

    queue_name: str | None
    priority: int | None
    good_until: datetime | None
    retry_policy: RetryPolicy | None
    timeout: float | None
    retention: Retention
    metadata: Mapping[str, Any] | None


class SubWorkflowNodeOptions(InputOptions, total=False):
    """What the node of a subworkflow takes: ``retry_policy`` runs the whole subworkflow again."""

    retry_policy: RetryPolicy | None


STEP_OPTIONS: Final = StepOptions.__optional_keys__
INPUT_OPTIONS: Final = InputOptions.__optional_keys__ - STEP_OPTIONS
#: Those that a node hands on to its task.
SEND_OPTIONS: Final = TaskNodeOptions.__optional_keys__ - STEP_OPTIONS - INPUT_OPTIONS
