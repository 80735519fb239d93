"""Computes the unique key of a call from its task's :class:`~horsies_django.core.unique.Unique`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from string import Formatter
from typing import Any, Final

from django.db.models import DateTimeField, Value
from django.db.models.functions import Greatest

from ..core.mask import MASKED, Mask, keyed_hash
from ..core.serialization import clean_text
from ..core.unique import ARGUMENTS, RESERVED, Unique, UniqueUntil
from ..db.expressions import NowPlus
from .call_builder import Arguments, CallBuilder, parameters_of
from .task import HorsiesTask

#: Maximum characters that the column takes.
KEY_LENGTH: Final = 255

#: The characters of a task's path that are kept before the hash of a key.
_PATH_SHOWN: Final = 200


def unique_key_of(
    task: HorsiesTask[..., Any],
    calls: CallBuilder,
    arguments: Arguments,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Return the unique key of a call.

    It has short plain values as text, and long, nested or sensitive ones as a keyed hash. Raises ValueError if the
    task's own ``key`` makes no valid key of the arguments.
    """
    unique = task.unique
    assert unique is not None  # the callers check
    if unique.key is not None:
        return _own(unique.key, calls, arguments, args, kwargs)
    bound = calls.bound(arguments)
    names = set(bound) if ARGUMENTS & set(unique.by) else set(unique.by) - RESERVED
    values = {name: _value(bound, name) for name in sorted(names)}
    path = f"{calls.path}@{task.queue_name}" if "queue" in unique.by else calls.path
    text = f"{path} {_canonical(values)}" if values else path
    if len(text) <= KEY_LENGTH and _is_plain(calls.mask, values):
        return text
    return f"{path[:_PATH_SHOWN]} #{keyed_hash('unique', text)}"


def has_masked_key(task: HorsiesTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a masked value of a call is part of its unique or limit key: equal keys would reveal equal values.

    The arguments are JSON values. A call that the function does not take has no key.
    """
    try:
        values = parameters_of(task.func, task.takes_context).bind_partial(args, kwargs)
    except TypeError:
        return False
    mask, unique = Mask(sensitive=task.sensitive), task.unique
    if unique is not None and unique.key is None:
        names = values if ARGUMENTS & set(unique.by) else set(unique.by) - RESERVED
        values_of_key = {name: _value(values, name) for name in names}
        if any(mask.apply_deep(name, value) is not value for name, value in values_of_key.items()):
            return True
    keys = (task.concurrency_key, unique and unique.key)
    return any(mask.is_revealed_by(key, values) for key in keys if key)


def problems_of_unique(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence for each conflict of ``unique`` with the task's function or its other options."""
    unique = task.unique
    if unique is None:
        return
    if not isinstance(unique, Unique):
        yield f"unique is {unique!r}; allowed: a Unique, or None."
        return
    if task.gather is not None:
        yield "unique is set and gather as well; allowed: one of them, since each handles repeated calls."
    if unique.wait is not None and task.run_after is not None:
        yield f"run_after is {task.run_after!r} and unique is a debounce; allowed: one of them, as each sets the time."
    parameters = parameters_of(task.func, task.takes_context)
    fields = _fields(unique.key) if isinstance(unique.key, str) else ()
    wanted, source = (fields, "key") if unique.key is not None else (set(unique.by) - RESERVED, "by")
    if not parameters.accepts_any:
        for name in sorted(set(wanted) - set(parameters.own)):
            yield f"unique: {source} names {name!r}; allowed: {', '.join(parameters.own)}."
    for name in sorted(RESERVED & set(unique.by) & parameters.by_name):
        yield f"unique: by names {name!r}, which is a parameter as well; allowed: key={'{' + name + '}'!r}."


def _own(
    given: str | Callable[..., str],
    calls: CallBuilder,
    arguments: Arguments,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    if isinstance(given, str):
        bound = calls.bound(arguments)
        values = {name: _value(bound, name) for name in _fields(given)}
        key = Formatter().vformat(given, (), values)
    else:
        values = calls.parameters.bind_partial(args, kwargs)
        key = given(*args, **kwargs)
    is_hidden = calls.mask.is_revealed_by(given, values)
    if not isinstance(key, str) or not 0 < len(key) <= KEY_LENGTH or key != clean_text(key):
        shown = MASKED if is_hidden else repr(key)
        raise ValueError(f"the unique key of {calls.path} is {shown}; allowed: a text of 1 to {KEY_LENGTH} characters.")
    # Hashed without the path, so that tasks can share a key.
    return f"#{keyed_hash('unique', key)}" if is_hidden else key


def _fields(key: str) -> set[str]:
    """Return the names in a format string."""
    return {name.partition(".")[0].partition("[")[0] for _, name, _, _ in Formatter().parse(key) if name is not None}


def _value(bound: Mapping[str, Any], name: str) -> Any:
    """Return an argument by name, also one that ``**kwargs`` takes."""
    if name in bound:
        return bound[name]
    return next((rest[name] for rest in bound.values() if isinstance(rest, dict) and name in rest), None)


def _canonical(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _is_plain(mask: Mask, values: Mapping[str, Any]) -> bool:
    """Whether the values may be visible in the key, which the admin shows."""
    return all(
        not isinstance(value, list | dict) and mask.apply(name, value) == value for name, value in values.items()
    )


def unique_columns(unique: Unique, run_after: datetime | timedelta | None) -> dict[str, Any]:
    """Return the columns that say until when a call holds its unique key. ``run_after`` is when it is due."""
    return {
        "unique_until": UniqueUntil(unique.until or UniqueUntil.DONE).value,
        "unique_expires_at": _expires_at(unique.period, run_after),
    }


def _expires_at(period: object, run_after: datetime | timedelta | None) -> Any:
    if not isinstance(period, timedelta):
        return None
    if isinstance(run_after, datetime):
        return Greatest(NowPlus(period.total_seconds()), Value(run_after + period, DateTimeField()))
    return NowPlus((period + (run_after or timedelta())).total_seconds())
