"""The project's registered tasks, and the error codes that they map exceptions to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.registry import registry
from ...enqueue.task import HorsiesTask
from ...models.operator_actions import ENGINE_TASK_PREFIX


def task_names() -> set[str]:
    """Return the names of the tasks registered at start-up, without the workflow engine's."""
    return {name for task in _tasks() if not (name := task.task_name).startswith(ENGINE_TASK_PREFIX)}


def error_codes() -> set[str]:
    """Return the error codes to which these tasks map exceptions."""
    return {code for task in _tasks() for code in task.exception_mapper.values()}


def _tasks() -> Iterator[HorsiesTask[..., Any]]:
    for name, task in list(registry.tasks.items()):
        if isinstance(task, HorsiesTask) and name not in registry.late:
            yield task
