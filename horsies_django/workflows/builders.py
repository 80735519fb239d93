"""Workflow builders: functions that build a workflow from parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from ..core.registry import registry
from .definition_registry import Builder, definition_registry
from .workflow import Workflow

P = ParamSpec("P")
W = TypeVar("W", bound=Workflow[Any])


@overload
def workflow_builder(function: Callable[P, W], /) -> Callable[P, W]: ...
@overload
def workflow_builder(*, cases: Sequence[Mapping[str, Any]] = ...) -> Callable[[Callable[P, W]], Callable[P, W]]: ...
def workflow_builder(function: Any = None, /, *, cases: Sequence[Mapping[str, Any]] = ()) -> Any:
    """Register a function that returns a :class:`Workflow`, and return the function unchanged.

    ``manage.py check`` calls it with the arguments of each of ``cases``; tasks that it sends are discarded.
    """

    def register(func: Callable[..., Any]) -> Callable[..., Any]:
        builder = Builder(func, cases)
        definition_registry.builders[builder.path] = builder
        registry.read_hints_of(func)
        return func

    return register if function is None else register(function)
