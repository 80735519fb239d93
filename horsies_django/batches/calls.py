"""Checks the calls of a batch and turns them into columns of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from ..core import headers
from ..core.backends import config_of
from ..core.compat import InvalidTask
from ..core.workflow_errors import shown
from ..core.workflow_status import Join
from ..enqueue.call_builder import CallBuilder
from ..enqueue.nodes import WORKFLOW_PARAMS, MapNode, TaskNode
from ..enqueue.task import HorsiesTask
from ..workflows.node_options import NodeOptionsResolver, ResolvedOptions

#: Parameters that a batch fills unless a call has them.
BATCH_ID: Final = "batch_id"
RESULTS: Final = "results"

_NONE: Final[frozenset[str]] = frozenset()

Columns = dict[str, Any]


class NodeColumns:
    """Makes the columns of the nodes of one batch."""

    def __init__(self, alias: str, batch_id: UUID) -> None:
        self.alias = alias
        self._options = config_of(alias)
        self._batch_id = str(batch_id)
        self._resolver = NodeOptionsResolver(alias, {})
        self._checked_tasks: dict[int, tuple[HorsiesTask[..., Any], ResolvedOptions]] = {}

    def node_of_call(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Columns:
        """Return the columns of a call's node.

        Raises InvalidTask for a value that is not a task, or a task with options of a single send, TypeError or
        ValueError, naming the parameter, for arguments that don't fit.
        """
        if not isinstance(task, HorsiesTask):
            raise InvalidTask(f"task is {shown(task)}; allowed: a task, as @task makes it.")
        if id(task) not in self._checked_tasks:
            self._checked_tasks[id(task)] = (task, self._resolve(TaskNode(task=task)))
        resolved = self._checked_tasks[id(task)][1]
        return self._columns(resolved, _named(_builder_of(resolved), args, kwargs))

    def node_of_callback(self, name: str, callback: Any, *, has_results: bool) -> Columns:
        """Return the columns of a callback's node: a task, or ``task.node(…)(…)`` with its own options and arguments.

        Raises InvalidTask for anything else, and the errors of :meth:`node_of_call`.
        """
        node = TaskNode(task=callback) if isinstance(callback, HorsiesTask) else callback
        if not isinstance(node, TaskNode) or isinstance(node, MapNode) or _has_node_options(node):
            raise InvalidTask(
                f"{name} is {shown(callback)}; allowed: a task, or a node of one that waits for no other."
            )
        return self._columns(self._resolve(node), node.kwargs, takes_results=has_results)

    def node_of_calls(self) -> Columns:
        """Return the columns of the node that stands for all calls."""
        return {"backend": self.alias, "queue_name": "default", "typed_payload": self._options.serializer == "rich"}

    def _columns(self, resolved: ResolvedOptions, kwargs: Mapping[str, Any], *, takes_results: bool = False) -> Columns:
        """Return the columns of a task with these arguments, and with the headers of the current context."""
        builder, columns = _builder_of(resolved), dict(resolved.columns)
        missing = builder.parameters.by_name - kwargs.keys()
        if BATCH_ID in missing:
            kwargs = {**kwargs, BATCH_ID: self._batch_id}
        results = missing & {RESULTS} if takes_results else _NONE
        if self._options.middleware:
            columns["metadata"] = headers.inject(self._options, columns["metadata"]) or columns["metadata"]
        return {
            **columns,
            "kwargs": builder.partial_arguments(kwargs, WORKFLOW_PARAMS & missing | results).kwargs,
            "limit_key": builder.partial_limit_key(kwargs, results),
            "values_from": dict.fromkeys(results, 0),
        }

    def _resolve(self, node: TaskNode[Any]) -> ResolvedOptions:
        resolved = self._resolver.resolve(node)
        if node_errors := [*node.errors, *resolved.errors]:
            raise InvalidTask(f"{node.label}: " + " ".join(problem for _, problem in node_errors))
        return resolved


def _named(builder: CallBuilder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments by name, as nodes store them. Raises TypeError for one without a name."""
    named = dict(kwargs)
    own = builder.parameters.own
    for place, value in enumerate(args):
        name = own[place] if place < len(own) else None
        if name not in builder.parameters.by_name:
            allowed = "arguments that can be given by name"
            raise TypeError(f"{builder.path}: positional argument {place + 1} has no name; allowed: {allowed}.")
        if name in kwargs:
            raise TypeError(f"{builder.path}: {name!r} is given twice; allowed: once.")
        named[name] = value
    return named


def _builder_of(resolved: ResolvedOptions) -> CallBuilder:
    assert isinstance(resolved.target, CallBuilder)  # the target of a task
    return resolved.target


def _has_node_options(node: TaskNode[Any]) -> bool:
    """Whether a node has more than a task, its options and its arguments."""
    return bool(
        node.waits_for
        or node.args
        or node.args_from
        or node.values_from
        or node.workflow_ctx_from is not None
        or node.join is not Join.ALL
        or node.allow_failed_deps
        or node.run_when is not None
        or node.skip_when is not None
    )
