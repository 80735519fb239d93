"""The masks of tasks, which hide sensitive arguments and results in the admin, logs and commands."""

from __future__ import annotations

import logging
from typing import Any

from ..core.compat import FrameworkTask
from ..core.exceptions import NotRegistered
from ..core.mask import MASKED, AnyMask, HideAll, Mask
from ..core.registry import registry
from .call_builder import parameters_of
from .task import HorsiesTask

__all__ = ["MASKED", "AnyMask", "HideAll", "Mask", "mask_of", "mask_of_task"]

logger = logging.getLogger("horsies_django.masking")


def mask_of(task_name: str) -> Mask:
    """Return the mask of the task of that name; one that hides everything if no such task is registered."""
    try:
        return mask_of_task(registry.find_task(task_name))
    except NotRegistered as error:
        logger.debug("mask not found task=%r error=%r: everything is hidden", task_name, error)
        return HideAll()


def mask_of_task(task: FrameworkTask[..., Any]) -> Mask:
    """Return the mask of a task."""
    names, rest = _names_of(task)
    return Mask(sensitive=task.sensitive if isinstance(task, HorsiesTask) else (), names=names, rest=rest)


def _names_of(task: FrameworkTask[..., Any]) -> tuple[list[str], str]:
    """Return the names of the positional parameters, and of ``*args``, empty if there is none."""
    parameters = parameters_of(task.func, task.takes_context)
    every = parameters.signature.parameters
    own = [every[name] for name in parameters.own]
    names = [one.name for one in own if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return names, next((one.name for one in own if one.kind is one.VAR_POSITIONAL), "")
