"""Sending a task that is named by its path: one of the project's own, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.apps import apps

from ..backend import config_of
from ..calls import Calls
from ..framework import resolve
from ..handle import TaskHandle
from ..models.interventions import INTERNAL
from ..models.transitions import TaskQuerySet
from ..tasks import HorsiesTask
from .states import State
from .verbs import Verb


def send_by_path(
    path: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> TaskHandle[Any]:
    """Send a call of the task at a dotted path, with the options of ``with_options()``. Returns its handle.

    Raises ValueError if there is no such task, and what ``with_options()`` and ``send()`` raise.
    """
    task = task_at(path)
    return (task.with_options(**options) if options else task).send(*args, **kwargs)


def rewriting(task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Verb:
    """Return the verb that gives scheduled calls of a task other arguments.

    Raises TypeError or ValueError, naming the parameter, for arguments that don't fit.
    """
    options = config_of(task.backend)
    arguments = Calls.of(task, options).arguments(args, kwargs)
    is_rich = options.serializer == "rich"
    act = partial(TaskQuerySet.rewrite, args=arguments.args, kwargs=arguments.kwargs, rich=is_rich)
    return Verb(
        name="update",
        states=frozenset({State.SCHEDULED}),
        act=act,
        otherwise="its arguments come from its workflow, or from calls that it gathers",
    )


def task_at(path: str) -> HorsiesTask[..., Any]:
    """Return the project's task at a dotted path. Raises ValueError if there is none.

    A module that is not loaded is imported only if it belongs to an installed app: a path that somebody typed must not
    run whatever can be imported.
    """
    module = path.rpartition(".")[0] if isinstance(path, str) else ""
    if not module or path.startswith(INTERNAL) or not _is_the_projects(module):
        raise ValueError(f"There is no task at {path!r}; allowed: the dotted path of a task in an installed app.")
    try:
        task = resolve(path)
    except ImportError as error:
        raise ValueError(f"There is no task at {path!r}: {error}") from error
    if not isinstance(task, HorsiesTask):
        raise ValueError(f"The task at {path!r} is of another kind of backend; allowed: one of a HorsiesBackend.")
    return task


def _is_the_projects(module: str) -> bool:
    names = (app.name for app in apps.get_app_configs())
    return module in sys.modules or any(f"{module}.".startswith(f"{name}.") for name in names)
