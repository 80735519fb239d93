"""Conditions of nodes, by the path under which a worker finds them (P-05)."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FunctionType
from typing import Any, Final

from .mistakes import shown

_ALLOWED: Final = "a module's own function, under its own name, that takes the WorkflowContext"


def path_of(condition: Any) -> str:
    """Return the dotted path of a condition. Raises ValueError, saying what is allowed, if it can't be one."""
    # Looked at first: what is not a function may not be hashable.
    if not isinstance(condition, FunctionType):
        raise ValueError(f"{shown(condition)}; allowed: {_ALLOWED}")
    return _path_of(condition)


@functools.cache
def _path_of(condition: FunctionType) -> str:
    module, name = condition.__module__, condition.__qualname__
    # Looked up, not imported: a module that builds its workflow while it is imported is not complete yet.
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not condition:
        raise ValueError(f"{module}.{name}, where a worker does not find it; allowed: {_ALLOWED}")
    if inspect.iscoroutinefunction(condition):
        raise ValueError(f"{module}.{name}, a coroutine function; allowed: {_ALLOWED}")
    try:
        inspect.signature(condition).bind(None)
    except TypeError:
        raise ValueError(f"{module}.{name}{inspect.signature(condition)}; allowed: {_ALLOWED}") from None
    return f"{module}.{name}"
