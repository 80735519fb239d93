"""The order of keyword arguments. PostgreSQL's ``jsonb`` sorts the keys of an object by their length."""

from __future__ import annotations

from typing import Any

from ...core.exceptions import NotRegistered
from ...core.parameters import parameters_of
from ...core.registry import registry


def in_call_order(task_name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments in the order of the task's parameters; unknown ones, and those of ``**kwargs``, last."""
    if len(kwargs) < 2:
        return kwargs
    try:
        task = registry.find_task(task_name)
    except NotRegistered:
        return kwargs
    known = [name for name in parameters_of(task.func, task.takes_context).own if name in kwargs]
    return {name: kwargs[name] for name in known} | kwargs
