"""Resolves the options of nodes: those of the task, those of the node, and those that the workflow passes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from ..core.backends import config_of
from ..core.clock import DATES_ALLOWED, is_in_range
from ..core.compat import (
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    InvalidTask,
    task_backends,
)
from ..core.options import Options
from ..core.retry import RetryPolicy
from ..core.workflow_errors import DefinitionErrorCode, NodeError, shown
from ..enqueue.call_builder import CallBuilder, Target
from ..enqueue.nodes import Node, TaskNode
from ..enqueue.task import HorsiesTask
from ..enqueue.task_validation import QUEUE_LENGTH
from .subworkflow_node import SubWorkflowNode

#: The columns of a task that its node stores until the task is enqueued.
TASK_COLUMNS: Final = (
    *("task_name", "queue_name", "backend", "priority", "is_async", "typed_payload", "max_retries", "retry_policy"),
    *("timeout", "retention", "retention_by_state", "good_until", "metadata"),
)

#: The same, and the key of the concurrency limit for its arguments.
CALL_COLUMNS: Final = (*TASK_COLUMNS, "limit_key")

_CODES: Final = {"queue_name": DefinitionErrorCode.INVALID_QUEUE, "priority": DefinitionErrorCode.INVALID_PRIORITY}

#: Options of one send that a task can't have in a workflow, and what to use instead.
_PER_SEND: Final = {
    "good_until": "node(good_until=…)",
    "unique": "with_options(unique=None), since each node has its own task",
    "unique_key": "the workflow's own unique_key",
    "task_id": "start(workflow_id=…)",
    "about_row": "the task without about()",
    "run_after": "a sleep() before it",
}


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """The columns of the tasks of some nodes, the target that checks arguments, and the errors of the options."""

    columns: Mapping[str, Any]
    target: Target | None = None
    errors: tuple[NodeError, ...] = ()


class NodeOptionsResolver:
    """Resolves the options of the nodes of one workflow; nodes with the same options are resolved once.

    ``errors`` are those of the workflow's own options. Nodes do not inherit an invalid option, which would be an error
    at each of them.
    """

    def __init__(self, alias: str, inherited: Mapping[str, Any]) -> None:
        self.alias = alias if isinstance(alias, str) else ""
        self.errors: list[NodeError] = []
        self._cache: dict[Any, ResolvedOptions] = {}
        self._options: dict[str, Options] = {}
        self._own = Options()
        try:
            self._own = self._options[alias] = config_of(alias)
        except (InvalidTask, ImproperlyConfigured) as error:
            self.errors.append((DefinitionErrorCode.INVALID_BACKEND, str(error)))
        wrong = dict(self._problems_of(inherited))
        self.errors += [(_CODES.get(name, DefinitionErrorCode.INVALID_OPTION), text) for name, text in wrong.items()]
        self._inherited = {name: value for name, value in inherited.items() if name not in wrong}
        self._step_options = ResolvedOptions(self._step_columns())

    def resolve(self, node: Node[Any]) -> ResolvedOptions:
        """Return the resolved options of a node."""
        if not isinstance(node, TaskNode | SubWorkflowNode):
            return self._step_options
        key = _key(node)
        if (resolved := self._cache.get(key)) is None:
            resolved = self._resolve_task(node) if isinstance(node, TaskNode) else self._resolve_subworkflow(node)
            self._cache[key] = resolved
        return resolved

    def _resolve_task(self, node: TaskNode[Any]) -> ResolvedOptions:
        task = node.task
        errors = [
            (DefinitionErrorCode.INVALID_OPTION, f"its task has the option {name}={shown(value)}; allowed: {instead}.")
            for name, instead in _PER_SEND.items()
            if (value := getattr(task, name)) is not None
        ]
        options = {**self._inherited, **node.options}
        for name, problem in list(_wrong_options(task, options)):
            errors.append((_CODES.get(name, DefinitionErrorCode.INVALID_OPTION), problem))
            del options[name]
        calls = CallBuilder(self._own, task)
        try:
            sent = task.with_options(**options)
            calls = CallBuilder(self._options_of(sent.backend), sent)
            columns = calls.columns
        except (InvalidTask, ImproperlyConfigured) as error:
            errors.append((DefinitionErrorCode.INVALID_BACKEND, str(error)))
        except (TypeError, ValueError) as error:  # metadata is the only option that has to be encoded
            errors.append((DefinitionErrorCode.INVALID_OPTION, f"metadata: {error}"))
        else:
            return ResolvedOptions({name: columns[name] for name in TASK_COLUMNS}, calls, tuple(errors))
        return ResolvedOptions({}, calls, tuple(errors))

    def _resolve_subworkflow(self, node: SubWorkflowNode[Any]) -> ResolvedOptions:
        node_errors: tuple[NodeError, ...] = ()
        columns = dict(self._step_options.columns)
        policy = node.options.get("retry_policy")
        if isinstance(policy, RetryPolicy):
            columns |= {"max_retries": policy.max_retries, "retry_policy": policy.as_json()}
        elif policy is not None:
            node_errors = (
                (DefinitionErrorCode.INVALID_OPTION, f"retry_policy is {shown(policy)}; allowed: a RetryPolicy."),
            )
        return ResolvedOptions(columns, Target(self._own, node.definition.build_with, node.label), node_errors)

    def _step_columns(self) -> dict[str, Any]:
        """Return the columns of a node without a task of its own."""
        columns = {
            "backend": self.alias,
            "typed_payload": self._own.serializer == "rich",
            "queue_name": self._step_queue(),
            "priority": DEFAULT_TASK_PRIORITY,
        }
        return columns | self._inherited

    def _step_queue(self) -> str:
        """Return the queue of nodes without a task of their own: ``default``, or another one that workers serve."""
        queues = self._known_queues()
        return DEFAULT_TASK_QUEUE_NAME if not queues or DEFAULT_TASK_QUEUE_NAME in queues else min(queues)

    def _known_queues(self) -> Collection[str]:
        """Return the names in QUEUES of the workflow's backend; none if any name is allowed."""
        return task_backends[self.alias].queues if self.alias in self._options else ()

    def _options_of(self, alias: str) -> Options:
        """Return the options of a backend. Raises InvalidTask if it is in another database than the workflow."""
        if alias not in self._options:
            options = config_of(alias)
            if self.alias in self._options and options.database != self._own.database:
                raise InvalidTask(
                    f"TASKS[{alias!r}] has its rows in the database {options.database!r}, "
                    f"the workflow in {self._own.database!r}; allowed: one database."
                )
            self._options[alias] = options
        return self._options[alias]

    def _problems_of(self, inherited: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        queue, priority, good_until = (inherited.get(name) for name in ("queue_name", "priority", "good_until"))
        if queue is not None and (problem := self._problem_of_queue(queue)):
            yield "queue_name", problem
        if priority is not None and not (type(priority) is int and TASK_MIN_PRIORITY <= priority <= TASK_MAX_PRIORITY):
            allowed = f"a whole number from {TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}"
            yield "priority", f"priority is {shown(priority)}; allowed: {allowed}."
        if good_until is not None and not (isinstance(good_until, datetime) and timezone.is_aware(good_until)):
            yield "good_until", f"good_until is {shown(good_until)}; allowed: an aware datetime (timezone.now() + …)."
        elif good_until is not None and not is_in_range(good_until):
            yield "good_until", f"good_until is {shown(good_until)}; allowed: {DATES_ALLOWED}."

    def _problem_of_queue(self, name: object) -> str | None:
        queues = self._known_queues()
        if not (isinstance(name, str) and 0 < len(name) <= QUEUE_LENGTH):
            return f"queue_name is {shown(name)}; allowed: a text of 1 to {QUEUE_LENGTH} characters."
        if queues and name not in queues:
            return f"queue_name is {name!r}; allowed: {', '.join(sorted(queues))}."
        return None


def _wrong_options(task: HorsiesTask[..., Any], options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each invalid option with its error; a task itself raises only for the first."""
    for name, value in options.items():
        try:
            task.with_options(**{name: value})
        except (InvalidTask, TypeError, ValueError) as error:
            text = str(error)
            yield name, text if text.startswith(name) else f"{name} is {shown(value)}: {text}"


def _key(node: TaskNode[Any] | SubWorkflowNode[Any]) -> Any:
    """Return a cache key: nodes with the same key have the same resolved options."""
    called = id(node.task) if isinstance(node, TaskNode) else id(node.definition)
    if not node.options:
        return called
    try:
        key = (called, tuple(node.options.items()))
        hash(key)
    except TypeError:
        return node  # unhashable, for example metadata: not shared
    return key
