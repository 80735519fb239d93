"""Conditions of nodes, found by their dotted paths. A lookup never imports a module.

A function is a condition by its signature, ``(context: WorkflowContext) -> bool``, by ``register_condition()``, or
because a definition has it at one of its nodes.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final, TypeVar

from ..core.annotations import annotations_of, bare_signature, hints_of
from ..core.exceptions import NotRegistered
from ..core.registry import imported_attribute
from ..core.workflow_errors import shown
from ..enqueue.nodes import WorkflowContext

F = TypeVar("F")

_ALLOWED: Final = "a module's own function, under its own name, that takes the WorkflowContext"
_REGISTERED: Final = "a function that is annotated (context: WorkflowContext) -> bool, or has @register_condition"

#: The functions that register_condition() and definitions have registered, by dotted path.
_registered: Final[dict[str, FunctionType]] = {}


def register_condition(function: F, /) -> F:
    """Register a function without annotations for ``run_when`` and ``skip_when``; return the function.

    Also works as a decorator. Raises ValueError unless it is a module-level function that takes one argument.
    """
    if not isinstance(function, FunctionType):
        raise ValueError(f"register_condition() got {shown(function)}; allowed: {_ALLOWED}.")
    path = f"{function.__module__}.{function.__qualname__}"
    if problem := _problem_of(function) or (", which a worker can't find" if "<" in path else ""):
        raise ValueError(f"register_condition() got {path}{problem}; allowed: {_ALLOWED}.")
    _registered[path] = function
    return function


def register_conditions_of(node: object) -> None:
    """Register the conditions of a definition's node; invalid ones are reported when the definition is built."""
    for name in ("run_when", "skip_when"):
        condition = getattr(node, name, None)
        if isinstance(condition, FunctionType) and _is_module_level(condition) and not _problem_of(condition):
            _registered[f"{condition.__module__}.{condition.__qualname__}"] = condition


def condition_at(path: str) -> FunctionType:
    """Return the condition with this dotted path. Raises NotRegistered if there is none."""
    if (condition := _registered.get(path)) is not None:
        return condition
    condition = imported_attribute(path)
    if (
        isinstance(condition, FunctionType)
        and path == f"{condition.__module__}.{condition.__qualname__}"
        and _is_annotated(condition)
    ):
        return condition
    raise NotRegistered(
        f"{path!r} is not a registered condition; registered is {_REGISTERED}, in a module that "
        "was imported when Django started."
    )


def conditions_of(module: str) -> Iterator[str]:
    """Yield the dotted paths of the conditions in an imported module."""
    for name in list(getattr(sys.modules.get(module), "__dict__", {})):
        try:
            condition_at(f"{module}.{name}")
        except NotRegistered:
            continue
        yield f"{module}.{name}"


def condition_path(condition: Any) -> str:
    """Return the dotted path of a condition. Raises ValueError, with what is allowed, for any other value."""
    # Before the cached part, since the value may not be hashable.
    if not isinstance(condition, FunctionType):
        raise ValueError(f"{shown(condition)}; allowed: {_ALLOWED}")
    path = _condition_path(condition)
    try:
        condition_at(path)
    except NotRegistered:
        raise ValueError(f"{path}, which is not registered; allowed: {_REGISTERED}") from None
    return path


@functools.cache
def _condition_path(condition: FunctionType) -> str:
    path = f"{condition.__module__}.{condition.__qualname__}"
    if condition.__module__ == "__main__" or not _is_module_level(condition):
        raise ValueError(f"{path}, which a worker can't find; allowed: {_ALLOWED}")
    if problem := _problem_of(condition):
        raise ValueError(f"{path}{problem}; allowed: {_ALLOWED}")
    return path


def _is_module_level(function: FunctionType) -> bool:
    # Looked up rather than imported: the module may be building its workflow while it is being imported.
    return getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function


def _problem_of(function: FunctionType) -> str:
    if inspect.iscoroutinefunction(function):
        return ", a coroutine function"
    try:
        bare_signature(function).bind(None)
    except TypeError:
        return str(bare_signature(function))
    return ""


@functools.cache
def _is_annotated(function: FunctionType) -> bool:
    """Whether the annotations of a function make it a condition."""
    # A name that exists only for type checkers is a text.
    hints = {**annotations_of(function, as_text=True), **hints_of(function)}
    if hints.get("return") not in (bool, "bool") or _problem_of(function):
        return False
    hint = hints.get(next(iter(bare_signature(function).parameters)))
    return hint is WorkflowContext or (isinstance(hint, str) and hint.split(".")[-1] == "WorkflowContext")
