"""Checks values against type hints, and reports only certain mismatches."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin

from django.utils.functional import Promise

from .annotations import bare_signature, hints_of
from .mask import BY_NAME, Mask
from .results import TaskResult

Test = Callable[[Any], bool]

#: The types that a hint accepts, for types that JSON has. A value of any other type may be a stand-in.
_ACCEPTED: Final[dict[Any, tuple[type, ...]]] = {
    str: (str, Promise),
    int: (int,),
    float: (int, float),
    bool: (int,),
    list: (list, tuple),
    tuple: (list, tuple),
    Sequence: (list, tuple, str),
    dict: (dict,),
    Mapping: (dict,),
    type(None): (type(None),),
}
_PLAIN: Final = (str, int, float, list, tuple, dict, type(None))


#: The commonest types of values, for which one lookup is enough.
_COMMON: Final = (str, int, float, bool, type(None), list, tuple, dict)


@dataclass(frozen=True, slots=True)
class TypeRule:
    """The rule that a type hint sets for values."""

    test: Test
    #: The exact types whose values always pass; most calls need nothing else.
    accepted_types: frozenset[type] = frozenset()
    description: str = ""

    def allows(self, value: Any) -> bool:
        """Whether a value can match the hint."""
        return type(value) in self.accepted_types or self.test(value)


@functools.cache
def rules_of(func: Callable[..., Any]) -> Mapping[str, TypeRule]:
    """Return the rules of a function's parameters by name. Parameters without hints have none."""
    rules: dict[str, TypeRule] = {}
    hints = hints_of(func)
    for name, parameter in bare_signature(func).parameters.items():
        is_single = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_single and (rule := _rule(hints.get(name, Any))):
            test = _or_default(rule.test, parameter.default)
            rules[name] = replace(rule, test=test, description=inspect.formatannotation(hints[name]))
    return rules


@functools.cache
def return_rule(func: Callable[..., Any]) -> TypeRule | None:
    """Return the rule for a function's return value. For a wrapped function the wrapper's hint counts."""
    hint = unwrapped(hints_of(func).get("return", Any))
    rule = _rule(hint)
    if rule is None or hasattr(func, "__wrapped__"):
        return None
    return replace(rule, description=inspect.formatannotation(hint))


def _or_default(test: Test, default: Any) -> Test:
    """Accept a parameter's own default, whatever the hint."""
    return (
        test
        if default is inspect.Parameter.empty
        else lambda value: value is default or value == default or test(value)
    )


def unwrapped(hint: Any) -> Any:
    """Return the hint of the ok value: T for ``TaskResult[T, E]``."""
    if get_origin(hint) is TaskResult:
        return get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(unwrapped, get_args(hint)))
    return Any if hint is TaskResult else hint


def _rule(hint: Any) -> TypeRule | None:
    """Return the test for a hint; None if every value passes."""
    origin, inner = get_origin(hint), get_args(hint)
    if not isinstance(hint, Hashable):
        return None  # not a type, but an unusual way to write one
    if hint is None:
        hint = type(None)
    if isinstance(hint, NewType):
        return _rule(hint.__supertype__)
    if origin is Annotated:
        return _rule(inner[0])
    if origin is Literal:
        return TypeRule(lambda value: value in inner or not isinstance(value, _PLAIN))
    if origin in (Union, types.UnionType):
        return _union(list(map(_rule, inner)))
    takes = _ACCEPTED.get(origin or hint)
    if takes is None:
        return None
    items = _rule(inner[0]) if len(inner) == 1 and origin in (list, Sequence) else None
    checked_by_item = (list, tuple) if items else ()
    at_once = frozenset(kind for kind in _COMMON if issubclass(kind, takes) and kind not in checked_by_item)
    return TypeRule(lambda value: _fits(value, takes, items), at_once)


def _union(rules: Sequence[TypeRule | None]) -> TypeRule | None:
    checks = [rule for rule in rules if rule is not None]
    if len(checks) < len(rules):
        return None
    return TypeRule(
        lambda value: any(rule.test(value) for rule in checks),
        frozenset().union(*(rule.accepted_types for rule in checks)),
    )


def _fits(value: Any, takes: tuple[type, ...], items: TypeRule | None) -> bool:
    if not isinstance(value, _PLAIN) or not isinstance(value, takes):
        return not isinstance(value, _PLAIN)
    return items is None or not isinstance(value, list | tuple) or all(map(items.allows, value))


def mismatches(
    func: Callable[..., Any],
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mask: Mask = BY_NAME,
) -> Iterator[str]:
    """Yield a clause for each argument that does not fit its parameter's type. ``names`` are those of ``args``.

    Sensitive values are masked.
    """
    rules = rules_of(func)
    for name, value in (*zip(names, args, strict=True), *kwargs.items()):
        if (rule := rules.get(name)) and not rule.allows(value):
            yield f"argument {name!r} is {mask.quote(name, value)}; allowed: {rule.description}"


def return_problem(func: Callable[..., Any], value: Any, mask: Callable[[], Mask] = lambda: BY_NAME) -> str | None:
    """Return a sentence if ``value`` does not fit the function's return type; None fits any.

    ``mask`` returns the mask for sensitive values.
    """
    rule = return_rule(func)
    if rule is None or value is None or rule.allows(value):
        return None
    return f"the return value is {mask().quote('result', value)}; its hint says {rule.description}."
