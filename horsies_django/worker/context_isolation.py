"""Running code so that the context variables that it sets end with it: Django's language and time zone are such."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from operator import is_
from typing import Any, Final, ParamSpec, TypeVar

from django.core.cache import caches

from ..core.compat import task_backends

P = ParamSpec("P")
T = TypeVar("T")

#: Django keeps the objects that these make in context variables, one for each alias. They are to serve a whole thread.
_HANDLERS: Final[tuple[Any, ...]] = (caches, task_backends)


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in a copy of this thread's context, and drop the copy afterwards.

    Caches and task backends that it is the first to use stay with the thread, for a cache may hold a connection.
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
    """Keep what ``handler`` has made in a context for this thread, unless the thread has an object of that alias."""
    made = context.run(_made, handler)
    for alias in made.keys() - _made(handler).keys():
        handler[alias] = made[alias]


def _made(handler: Any) -> dict[str, Any]:
    """Return the objects of this context by alias. ``handler.all()`` does not say the aliases."""
    kept = handler._connections
    return {alias: getattr(kept, alias) for alias in handler if hasattr(kept, alias)}
