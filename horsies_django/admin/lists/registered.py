"""What the project's own modules say there is: tasks, and the codes that they map exceptions to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from django.apps import apps

from ...models.interventions import INTERNAL
from ...tasks import HorsiesTask


def task_names() -> set[str]:
    """Return the paths of the tasks in the apps' own modules of tasks; the engine's are left out."""
    return {path for task in _tasks() if not (path := task.module_path).startswith(INTERNAL)}


def error_codes() -> set[str]:
    """Return the codes that these tasks map exceptions to."""
    return {code for task in _tasks() for code in task.exception_mapper.values()}


def _tasks() -> Iterator[HorsiesTask[..., Any]]:
    for app in apps.get_app_configs():
        module = sys.modules.get(f"{app.name}.tasks")
        yield from (value for value in vars(module or object).values() if isinstance(value, HorsiesTask))
