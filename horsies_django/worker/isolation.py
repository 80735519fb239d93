"""Running code so that the context variables it sets, and Django's active language and time zone, end with it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from operator import is_
from typing import Any, Final, ParamSpec, TypeVar

from django.core.cache import caches

from ..compat import task_backends

P = ParamSpec("P")
T = TypeVar("T")

#: Django keeps the objects that these make in context variables. They serve a thread, as in a web server.
_HANDLERS: Final[tuple[Any, ...]] = (caches, task_backends)


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in a copy of this thread's context, which is dropped afterwards.

    Caches and task backends that it is the first to use stay with the thread: each cache may hold a connection.
    """
    before = copy_context()
    context = before.copy()
    result = context.run(function, *args, **kwargs)
    if len(context) != len(before) or not all(map(is_, context.values(), before.values())):
        for handler in _HANDLERS:
            _keep_made(handler, context)
    return result


def _keep_made(handler: Any, context: Context) -> None:
    """Take over what ``handler`` has made in a context; a client that this thread already has stays."""
    made = context.run(_made, handler)
    for alias in made.keys() - _made(handler).keys():
        handler[alias] = made[alias]


def _made(handler: Any) -> dict[str, Any]:
    """Return the objects of this context by alias. ``handler.all()`` does not say the aliases."""
    kept = handler._connections
    return {alias: getattr(kept, alias) for alias in handler if hasattr(kept, alias)}
