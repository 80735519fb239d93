"""Send or rewrite a task by its registered name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...core.backends import config_of
from ...core.exceptions import NotRegistered
from ...core.registry import registry
from ...enqueue.call_builder import CallBuilder
from ...enqueue.handle import TaskHandle
from ...enqueue.task import HorsiesTask
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...models.transitions import TaskQuerySet
from .actions import TaskAction
from .task_states import State


def send_by_name(
    path: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> TaskHandle[Any]:
    """Send the task with this name, with the options of ``with_options()``. Return its handle.

    Raises ValueError if there is no such task, and whatever ``with_options()`` and ``send()`` raise.
    """
    task = registered_task(path)
    return (task.with_options(**options) if options else task).send(*args, **kwargs)


def update_action(task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskAction:
    """Return the action that replaces the arguments of scheduled calls of a task.

    Raises TypeError or ValueError that names the parameter if the arguments don't fit.
    """
    options = config_of(task.backend)
    arguments = CallBuilder.of(task, options).arguments(args, kwargs)
    is_typed = options.serializer == "rich"
    act = partial(TaskQuerySet.rewrite, args=arguments.args, kwargs=arguments.kwargs, typed_payload=is_typed)
    return TaskAction(
        name="update",
        states=frozenset({State.SCHEDULED}),
        act=act,
        fallback_reason="its arguments come from its workflow, or from calls that it gathers",
    )


def registered_task(path: str) -> HorsiesTask[..., Any]:
    """Return the registered task with this name. Raises ValueError if there is none. Imports nothing."""
    if not isinstance(path, str):
        raise ValueError(f"There is no task at {path!r}; allowed: the name of a registered task.")
    try:
        task = registry.find_task(path)
    except NotRegistered as error:
        raise ValueError(f"There is no task at {path!r}: {error}") from error
    if path.startswith(ENGINE_TASK_PREFIX):
        raise ValueError(f"There is no task at {path!r}; allowed: a task of the project.")
    if not isinstance(task, HorsiesTask):
        raise ValueError(f"The task at {path!r} is of another kind of backend; allowed: one of a HorsiesBackend.")
    return task
