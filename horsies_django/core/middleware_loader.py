"""Import and validate the middleware that OPTIONS["middleware"] names, when it is first needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

#: A middleware factory: takes the callable to wrap and returns the wrapper.
Factory = Callable[[Any], Any]

ALLOWED: Final = "dotted paths of middleware"


@functools.cache
def load_factory(path: str) -> Factory:
    """Return the factory at a dotted path. Raises ImproperlyConfigured naming the problem."""
    try:
        found = import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f"middleware {path!r} can't be imported: {error}") from error
    if problem := next(_problems_of(found), None):
        raise ImproperlyConfigured(f"middleware {path!r} {problem}")
    factory: Factory = found
    return factory


def supports_mode(factory: Factory, *, is_async: bool) -> bool:
    """Whether it wraps coroutines (``is_async``) or functions directly; by default functions only."""
    return bool(getattr(factory, "async_capable", False) if is_async else getattr(factory, "sync_capable", True))


def _problems_of(found: Any) -> Iterator[str]:
    if not callable(found):
        yield f"is {type(found).__name__}; allowed: a function or a class that takes the callable to wrap."
    elif not any(supports_mode(found, is_async=is_async) for is_async in (False, True)):
        yield "is neither sync_capable nor async_capable; allowed: one of them, or both."
    elif not callable(getattr(found, "headers", dict)):
        yield "has headers that can't be called; allowed: a function, a static or a class method, that takes nothing."
    elif not callable(getattr(found, "around_send", dict)):
        yield "has an around_send that can't be called; allowed: a function, a static or a class method."
    elif isinstance(names := getattr(found, "reserved_headers", ()), str | bytes) or not isinstance(names, Collection):
        yield f"has reserved_headers {names!r}; allowed: a collection of names."
