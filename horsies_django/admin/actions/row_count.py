"""A number of rows in words, with their state: *152 failed tasks*."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from django.contrib.admin.utils import model_ngettext
from django.db.models import Model
from django.utils.translation import ngettext

from ...core.status import TaskStatus
from ...core.workflow_status import WorkflowStatus
from ...models import Task, Workflow

#: The noun with a placeholder for the number, by model and status. Each is an object of a verb.
_NOUNS: Final[Mapping[type[Model], Mapping[str, Callable[[int], str]]]] = {
    Task: {
        "": lambda count: ngettext("%s task", "%s tasks", count),
        TaskStatus.PENDING: lambda count: ngettext("%s pending task", "%s pending tasks", count),
        TaskStatus.CLAIMED: lambda count: ngettext("%s claimed task", "%s claimed tasks", count),
        TaskStatus.RUNNING: lambda count: ngettext("%s running task", "%s running tasks", count),
        TaskStatus.COMPLETED: lambda count: ngettext("%s completed task", "%s completed tasks", count),
        TaskStatus.FAILED: lambda count: ngettext("%s failed task", "%s failed tasks", count),
        TaskStatus.CANCELLED: lambda count: ngettext("%s cancelled task", "%s cancelled tasks", count),
        TaskStatus.EXPIRED: lambda count: ngettext("%s expired task", "%s expired tasks", count),
    },
    Workflow: {
        "": lambda count: ngettext("%s workflow", "%s workflows", count),
        WorkflowStatus.PENDING: lambda count: ngettext("%s pending workflow", "%s pending workflows", count),
        WorkflowStatus.RUNNING: lambda count: ngettext("%s running workflow", "%s running workflows", count),
        WorkflowStatus.PAUSED: lambda count: ngettext("%s paused workflow", "%s paused workflows", count),
        WorkflowStatus.COMPLETED: lambda count: ngettext("%s completed workflow", "%s completed workflows", count),
        WorkflowStatus.FAILED: lambda count: ngettext("%s failed workflow", "%s failed workflows", count),
        WorkflowStatus.CANCELLED: lambda count: ngettext("%s cancelled workflow", "%s cancelled workflows", count),
        WorkflowStatus.EXPIRED: lambda count: ngettext("%s expired workflow", "%s expired workflows", count),
    },
}


def describe_count(model: type[Model], count: int, shown: str, status: str = "") -> str:
    """Return a number of rows in words, with the status that all of them have. ``shown`` is the number as text."""
    nouns = _NOUNS.get(model, {})
    noun = nouns.get(status) or nouns.get("")
    return noun(count) % shown if noun else f"{shown} {model_ngettext(model._meta, count)}"
