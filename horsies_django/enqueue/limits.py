"""Concurrency and rate limits of a task's calls, by key: at most 2 at once for each customer, for example.

``max_concurrency`` and ``rate_limit`` of ``@task`` apply to each ``concurrency_key``; without one, to all calls of the
task together. A row stores the limit key as ``scope:text``. The scope is the task's name by default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from ..core.limit_terms import LENGTH
from ..core.mask import MASKED, Mask, keyed_hash
from ..core.rates import Rate
from ..core.serialization import clean_text

if TYPE_CHECKING:
    from .call_builder import Parameters
    from .task import HorsiesTask

#: The characters of a scope that are kept before the hash of a sensitive key.
_SCOPE_SHOWN: Final = 200


def limit_key_of(
    task: HorsiesTask[..., Any], parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the limit key of a call, None if it has no limit.

    A key that could reveal sensitive arguments is replaced with a keyed hash.

    Raises TypeError if the key is not a str, ValueError if it is empty or too long, and whatever the task's own
    callable raises.
    """
    scope, key = task.concurrency_scope or task.task_name, task.concurrency_key
    if key is None:
        return scope
    bound = parameters.bind_partial(args, kwargs)
    text = key(*args, **kwargs) if callable(key) else _formatted(key, task, bound)
    if text is None:
        return None
    is_hidden = Mask(sensitive=task.sensitive).is_revealed_by(key, bound)
    shown = MASKED if is_hidden else repr(text)
    if not isinstance(text, str):
        raise TypeError(f"concurrency_key of {task.task_name} gave {shown}; allowed: a text, or None.")
    room = LENGTH - len(scope) - 1
    if not 0 < len(text) <= room or text != clean_text(text):
        raise ValueError(f"concurrency_key of {task.task_name} gave {shown}; allowed: 1 to {room} characters.")
    if is_hidden:
        return f"{scope[:_SCOPE_SHOWN]}:#{keyed_hash('limit', f'{scope}:{text}')}"
    return f"{scope}:{text}"


def partial_key(
    task: HorsiesTask[..., Any], parameters: Parameters, kwargs: Mapping[str, Any], later: Set[str]
) -> str | None:
    """Return the limit key of a call whose parameters ``later`` get their values at run time.

    Raises ValueError if the key may need one of them, and the errors of :func:`limit_key_of`.
    """
    key = task.concurrency_key
    if key is not None and (unknown := sorted(later if callable(key) else later & set(_names_in(key)))):
        problem = f"concurrency_key of {task.task_name} needs {', '.join(unknown)}, known only when the call begins"
        raise ValueError(f"{problem}; allowed: a key of arguments that are known before.")
    return limit_key_of(task, parameters, (), kwargs)


def _formatted(key: str, task: HorsiesTask[..., Any], bound: Mapping[str, Any]) -> str:
    try:
        return key.format_map(bound)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        problem = f"concurrency_key of {task.task_name} is {key!r}, which this call can't fill: {error!r}."
        raise ValueError(problem) from error


def blocking_columns(key: str | None, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a call with this limit key. A deferred call is not blocked before it is due."""
    if key is None:
        return {}
    return {"limit_key": key, "deferred": True, "blocked": not is_deferred(columns)}


def is_deferred(columns: Mapping[str, Any]) -> bool:
    """Whether a call has a time to wait for. It may have passed: a worker finds that out."""
    return columns.get("deferred", False) is not False


def problems_of(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence for each option with a bad value."""
    most, rate, scope = task.max_concurrency, task.rate_limit, task.concurrency_scope
    if most is not None and not (isinstance(most, int) and not isinstance(most, bool) and most >= 1):
        yield f"max_concurrency is {most!r}; allowed: a whole number from 1 on, or None."
    if rate is not None:
        try:
            Rate.parse(rate)
        except ValueError as error:
            yield f"rate_limit: {error}"
    if scope is not None and not (isinstance(scope, str) and 0 < len(scope) <= 100 and scope == clean_text(scope)):
        yield f"concurrency_scope is {scope!r}; allowed: a text of 1 to 100 characters."
    if most is None and rate is None:
        for name in ("concurrency_key", "concurrency_scope"):
            if (value := getattr(task, name)) is not None:
                yield f"{name} is {value!r}, but there is no limit; allowed: with max_concurrency, rate_limit or both."
    elif task.gather is not None:
        yield "gather is set; allowed with it: neither max_concurrency nor rate_limit."
    if task.concurrency_key is not None and (problem := _problem_of_key(task.concurrency_key, task)):
        yield f"concurrency_key is {task.concurrency_key!r}{problem}"


def _problem_of_key(key: str | Callable[..., str | None], task: HorsiesTask[..., Any]) -> str | None:
    if callable(key):
        return "; allowed: a plain function, no coroutine." if inspect.iscoroutinefunction(key) else None
    if not isinstance(key, str) or not key:
        return "; allowed: a text like 'customer-{customer_id}', a callable with the task's arguments, or None."
    try:
        names = _names_in(key)
    except ValueError as error:
        return f", which is not a valid format string: {error}."
    known = list(inspect.signature(task.func).parameters)[int(task.takes_context) :]
    for name in names:
        if name not in known:
            return f", which names {name!r}; allowed: the parameters {', '.join(known) or '(none)'}."
    return None


def _names_in(key: str) -> list[str]:
    """Return the parameters that a format string names, nested specs included. Raises ValueError if it is malformed."""
    names: list[str] = []
    for _, name, spec, _ in Formatter().parse(key):
        if name is not None:
            names += [name.split(".")[0].split("[")[0], *_names_in(spec or "")]
    return names
