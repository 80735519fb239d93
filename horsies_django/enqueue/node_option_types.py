"""The options of nodes as TypedDicts, so that editors complete them."""

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

#: The type of ``run_when`` and ``skip_when``: called once, when the node would become ready.
Condition = Callable[["WorkflowContext"], bool]


class StepOptions(TypedDict, total=False):
    """The options of every node.

    ``join`` sets how many of the nodes that it waits for must complete (with QUORUM: ``min_success``).
    ``allow_failed_deps`` starts it even if some have not completed. ``run_when`` and ``skip_when`` are conditions.
    """

    node_id: str | None
    waits_for: Node[Any] | Iterable[Node[Any]]
    allow_failed_deps: bool
    join: Join
    min_success: int | None
    run_when: Condition | None
    skip_when: Condition | None


class InputOptions(StepOptions, total=False):
    """The options of nodes with parameters.

    ``args_from`` fills a parameter with the :class:`~horsies_django.TaskResult` of a node, ``values_from`` with its ok
    value; a list of nodes fills it with a list. ``workflow_ctx_from`` lists the nodes in the parameter
    ``workflow_ctx``.
    """

    args_from: Mapping[str, Node[Any] | ResultOf | Iterable[Node[Any]]]
    values_from: Mapping[str, Node[Any] | Iterable[Node[Any]]]
    workflow_ctx_from: Node[Any] | Iterable[Node[Any]] | None


class TaskNodeOptions(InputOptions, total=False):
    """The options of a task's node: those of the task, as in ``with_options()``, and those of a node."""

    queue_name: str | None
    priority: int | None
    good_until: datetime | None
    retry_policy: RetryPolicy | None
    timeout: float | None
    retention: Retention
    metadata: Mapping[str, Any] | None


class SubWorkflowNodeOptions(InputOptions, total=False):
    """The options of a subworkflow's node: ``retry_policy`` runs the whole subworkflow again."""

    retry_policy: RetryPolicy | None


STEP_OPTIONS: Final = StepOptions.__optional_keys__
INPUT_OPTIONS: Final = InputOptions.__optional_keys__ - STEP_OPTIONS
#: The options that a node passes to its task.
SEND_OPTIONS: Final = TaskNodeOptions.__optional_keys__ - STEP_OPTIONS - INPUT_OPTIONS
