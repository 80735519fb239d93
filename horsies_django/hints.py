"""Type hints, as far as a value that can't be right is told by them."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin, get_type_hints

from django.utils.functional import Promise

from .results import TaskResult

Test = Callable[[Any], bool]

#: What a hint of the type takes, for the types that JSON knows. A value of any other type may be anything's stand-in.
_TAKES: Final[dict[Any, tuple[type, ...]]] = {
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


@functools.cache
def checks_of(func: Callable[..., Any]) -> Mapping[str, tuple[Test, str]]:
    """Return, by parameter name or ``return``, a test for values and the hint in words; nothing for what is not hinted.

    Hints that can't be resolved at run time count as none; what a wrapped function returns is its wrapper's to say.
    """
    try:
        hints = get_type_hints(func, include_extras=True)
    except Exception:  # noqa: BLE001  # a name that only a type checker imports, a hint that is no expression: no hint
        return {}
    tests: dict[str, tuple[Test, str]] = {}
    for name, parameter in inspect.signature(func).parameters.items():
        is_single = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_single and (test := _test(hints.get(name, Any))):
            tests[name] = _or_default(test, parameter.default), inspect.formatannotation(hints[name])
    hint = _unwrapped(hints.get("return", Any))
    if (test := _test(hint)) and not hasattr(func, "__wrapped__"):
        tests["return"] = test, inspect.formatannotation(hint)
    return tests


def _or_default(test: Test, default: Any) -> Test:
    """A parameter's own default is right, whatever its hint says."""
    return (
        test
        if default is inspect.Parameter.empty
        else lambda value: value is default or value == default or test(value)
    )


def _unwrapped(hint: Any) -> Any:
    """``TaskResult[T, E]`` says of the ok value that it is a T."""
    if get_origin(hint) is TaskResult:
        return get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_unwrapped, get_args(hint)))
    return Any if hint is TaskResult else hint


def _test(hint: Any) -> Test | None:
    """Return whether a value can be right for a hint; None if every value can."""
    origin, inner = get_origin(hint), get_args(hint)
    if not isinstance(hint, Hashable):
        return None  # no type, but somebody's way to write one
    if hint is None:
        hint = type(None)
    if isinstance(hint, NewType):
        return _test(hint.__supertype__)
    if origin is Annotated:
        return _test(inner[0])
    if origin is Literal:
        return lambda value: value in inner or not isinstance(value, _PLAIN)
    if origin in (Union, types.UnionType):
        tests = list(map(_test, inner))
        known = [test for test in tests if test is not None]
        return None if len(known) < len(tests) else lambda value: any(test(value) for test in known)
    takes = _TAKES.get(origin or hint)
    if takes is None:
        return None
    items = _test(inner[0]) if len(inner) == 1 and origin in (list, Sequence) else None
    return lambda value: _fits(value, takes, items)


def _fits(value: Any, takes: tuple[type, ...], items: Test | None) -> bool:
    if not isinstance(value, _PLAIN) or not isinstance(value, takes):
        return not isinstance(value, _PLAIN)
    return items is None or not isinstance(value, list | tuple) or all(map(items, value))


def mismatches(
    func: Callable[..., Any], names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a clause for each argument that can't be of its parameter's type; ``names`` are those of ``args``."""
    tests = checks_of(func)
    if not tests:
        return
    for name, value in (*zip(names, args, strict=True), *kwargs.items()):
        if (found := tests.get(name)) and not found[0](value):
            yield f"argument {name!r} is {_shown(value)}; allowed: {found[1]}"


def return_problem(func: Callable[..., Any], value: Any) -> str | None:
    """Return a sentence if ``value`` can't be of the type that the function says it returns; None fits any."""
    found = checks_of(func).get("return")
    if found is None or value is None or found[0](value):
        return None
    return f"the return value is {_shown(value)}; its hint says {found[1]}."


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:80] + '…'} ({type(value).__name__})"
