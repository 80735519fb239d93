"""Type compatibility: whether the value of a node fits a parameter, by their type hints.

Hints are reduced to the types that JSON has; a hint without such a type fits everything.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin

from ..core.results import TaskResult
from ..core.type_check import hints_of, unwrapped

#: The types of values that a hint allows; None is any.
TypeSet = frozenset[type] | None

_ACCEPTED_BY_HINT: Final[dict[Any, frozenset[type]]] = {
    str: frozenset({str}),
    bool: frozenset({bool}),
    int: frozenset({int, bool}),
    float: frozenset({float, int, bool}),
    list: frozenset({list}),
    tuple: frozenset({list}),
    Sequence: frozenset({list, str}),
    Iterable: frozenset({list, str, dict}),
    dict: frozenset({dict}),
    Mapping: frozenset({dict}),
    None: frozenset({type(None)}),
    type(None): frozenset({type(None)}),
    TaskResult: frozenset({TaskResult}),
}
#: The narrowest types of a produced value: a float is no int, and an int no bool.
_PRODUCED_BY_HINT: Final[dict[Any, frozenset[type]]] = _ACCEPTED_BY_HINT | {
    int: frozenset({int}),
    float: frozenset({float}),
}


def accepted_types(hint: Any) -> TypeSet:
    """Return the types of values that a parameter with this hint accepts."""
    return _types(hint, _ACCEPTED_BY_HINT)


def produced_types(hint: Any) -> TypeSet:
    """Return the types of values that a result with this hint has."""
    return _types(unwrapped(hint), _PRODUCED_BY_HINT)


@functools.cache
def returned_types(func: Callable[..., Any]) -> TypeSet:
    """Return the types of a function's ok values."""
    return None if hasattr(func, "__wrapped__") else produced_types(hints_of(func).get("return", Any))


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a parameter accepts: values of these types, and whether a TaskResult."""

    types: TypeSet = None
    accepts_result: bool = True


@functools.cache
def accepted_by_parameter(func: Callable[..., Any]) -> Mapping[str, Accepted]:
    """Return what the hinted parameters of a function accept; the others accept anything."""
    return {name: Accepted(accepted_types(hint), accepts_result(hint)) for name, hint in hints_of(func).items()}


def are_disjoint(source: TypeSet, target: TypeSet) -> bool:
    """Whether no value has both types."""
    return source is not None and target is not None and source.isdisjoint(target)


def describe(kinds: TypeSet) -> str:
    """Return types as text for an error message."""
    return " or ".join(sorted("None" if kind is type(None) else kind.__name__ for kind in kinds or ())) or "anything"


def accepts_result(hint: Any) -> bool:
    """Whether a parameter with this hint accepts a TaskResult."""
    return (found := accepted_types(hint)) is None or TaskResult in found


def _types(hint: Any, known: Mapping[Any, frozenset[type]]) -> TypeSet:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        found = [_types(one, known) for one in inner]
        return None if None in found else frozenset[type]().union(*(kinds for kinds in found if kinds))
    if origin is Literal:
        return frozenset(map(type, inner))
    if origin is Annotated:
        return _types(inner[0], known)
    if isinstance(hint, NewType):
        return _types(hint.__supertype__, known)
    if typing.is_typeddict(hint):
        return known[dict]
    try:
        return known.get(origin or hint)
    except TypeError:  # an unhashable hint
        return None
