"""Masking: what of a call and its outcome people who look are not to see, as in Django's own error reports.

The project's filter of error reports judges every name, and the task's own ``sensitive`` as well. Rows stay as they
are: this is for the eye.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final

from django.views.debug import SafeExceptionReporterFilter, get_default_exception_reporter_filter

from .calls import parameters_of
from .compat import FrameworkTask
from .exceptions import NotRegistered
from .registry import registry
from .task_options import Sensitive
from .tasks import HorsiesTask

logger = logging.getLogger("horsies_django.masking")

#: What stands for a value that is not to be seen.
MASKED: Final = SafeExceptionReporterFilter.cleansed_substitute


class Mask:
    """Says of each value, by its name, what may be seen of it. Never raises: what can't be judged is masked.

    >>> Mask().seen("password", "x")
    '********************'
    >>> Mask(sensitive={"iban"}).seen("iban", "DE02…")
    '********************'
    """

    def __init__(self, *, sensitive: Sensitive = (), names: Sequence[str] = (), rest: str = "") -> None:
        self._sensitive = sensitive
        self._names = names
        self._rest = rest
        self._has_told = False

    def seen(self, name: str, value: Any) -> Any:
        """Return what may be seen of a value: itself, or what stands for it. What is in it is not looked at."""
        try:
            return MASKED if self._is_sensitive(name, value) else _filtered(name, value)
        except Exception:  # of a project's own code
            if not self._has_told:
                logger.exception("whether %r is sensitive can't be known: it is masked", name)
                self._has_told = True
            return MASKED

    def seen_args(self, args: Any) -> Any:
        """Return what may be seen of positional arguments, by the names that the function has for them."""
        if not isinstance(args, list):
            return args
        names = self._names[: len(args)]
        return [self.seen(name, value) for name, value in zip_longest(names, args, fillvalue=self._rest)]

    def _is_sensitive(self, name: str, value: Any) -> bool:
        if callable(self._sensitive):
            return bool(self._sensitive(name, value))
        return name in self._sensitive


class AnyMask(Mask):
    """Hides what any of some masks hides; with none of them it goes by names alone."""

    def __init__(self, masks: Sequence[Mask]) -> None:
        super().__init__()
        self._masks = masks

    def seen(self, name: str, value: Any) -> Any:
        """See :meth:`Mask.seen`."""
        for mask in self._masks:
            value = mask.seen(name, value)
        return value if self._masks else super().seen(name, value)


def mask_of(task_name: str) -> Mask:
    """Return the mask of the task of that name; one that goes by names alone if no such task is registered."""
    try:
        task = registry.find_task(task_name)
        names, rest = _names_of(task)
    except NotRegistered as error:
        logger.debug("no task at %r to ask what is sensitive: %r", task_name, error)
        return Mask()
    return Mask(sensitive=task.sensitive if isinstance(task, HorsiesTask) else (), names=names, rest=rest)


def _names_of(task: FrameworkTask[..., Any]) -> tuple[list[str], str]:
    """The names of the positional parameters, and that of the one that takes all others."""
    parameters = parameters_of(task.func, task.takes_context)
    every = parameters.signature.parameters
    own = [every[name] for name in parameters.own]
    names = [one.name for one in own if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return names, next((one.name for one in own if one.kind is one.VAR_POSITIONAL), "")


def _filtered(name: str, value: Any) -> Any:
    """Ask the project's filter; about a container by its name alone, for what is in it is judged as it is shown."""
    judge = get_default_exception_reporter_filter()
    if not isinstance(value, dict | list):
        return judge.cleanse_setting(name, value)
    empty: Any = type(value)()
    cleansed = judge.cleanse_setting(name, empty)
    return value if cleansed == empty else cleansed
