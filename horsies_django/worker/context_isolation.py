"""Isolates context variables that a task sets, such as Django's language and time zone."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from operator import is_
from typing import Any, Final, ParamSpec, TypeVar

from django.core.cache import caches

from ..core.compat import task_backends

P = ParamSpec("P")
T = TypeVar("T")

#: Django keeps the objects of these handlers in context variables, one for each alias. They should last for the thread.
_HANDLERS: Final[tuple[Any, ...]] = (caches, task_backends)


def isolated(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in a copy of this thread's context, and drop the copy afterwards.

    Caches and task backends that it is the first to use stay with the thread: a cache may hold a connection.
    """
    before = copy_context()
    context = before.copy()
    try:
        return context.run(function, *args, **kwargs)
    finally:
        if len(context) != len(before) or not all(map(is_, context.values(), before.values())):
            for handler in _HANDLERS:
                _keep_made(handler, context)


def _keep_made(handler: Any, context: Context) -> None:
    """Keep for this thread what ``handler`` has made in a context, unless the thread has an object of that alias."""
    made = context.run(_made, handler)
    for alias in made.keys() - _made(handler).keys():
        handler[alias] = made[alias]


def _made(handler: Any) -> dict[str, Any]:
    """Return the objects of this context by alias, which ``handler.all()`` does not return."""
    kept = handler._connections
    return {alias: getattr(kept, alias) for alias in handler if hasattr(kept, alias)}
