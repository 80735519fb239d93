"""The keys of calls: of their concurrency and rate limits, of their uniqueness, and of their groups.

``max_concurrency`` and ``rate_limit`` of ``@task`` apply to each ``concurrency_key``; without one, to all calls of the
task together. A row stores the limit key as ``scope:text``. The scope is the task's name by default. A key that could
reveal sensitive arguments is replaced with a keyed hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from ..core.compat import InvalidTask
from ..core.grouping_policy import Gather
from ..core.limits import LENGTH
from ..core.mask import MASKED, Mask, keyed_hash
from ..core.parameters import Parameters, parameters_of
from ..core.serialization import clean_text, decode_call
from ..core.unique import ARGUMENTS, RESERVED

if TYPE_CHECKING:
    from .call_builder import Arguments, CallBuilder
    from .task import HorsiesTask

#: The maximum length of a unique key, in characters.
KEY_LENGTH: Final = 255

#: The characters of a scope, or of a task's path, that are kept before the hash of a key.
_SHOWN: Final = 200

#: The options of a send that only fit a task of its own.
_NOT_SHARED: Final = ("unique_key", "task_id", "good_until", "about_row")


def limit_key_of(
    task: HorsiesTask[..., Any], parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the limit key of a call, None if it has no limit.

    A key that could reveal sensitive arguments is replaced with a keyed hash.

    Raises TypeError if the key is not a str, ValueError if it is empty or too long, and whatever the task's own
    callable raises.
    """
    scope, key = task.concurrency_scope or task.task_name, task.concurrency_key
    if task.one_at_a_time is not None:
        if task.about_row is None:
            return None
        own = f"{scope}:{task.about_row}"
        return own if len(own) <= LENGTH else _hidden_limit_key(scope, str(task.about_row))
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
    return _hidden_limit_key(scope, text) if is_hidden else f"{scope}:{text}"


def _hidden_limit_key(scope: str, text: str) -> str:
    return f"{scope[:_SHOWN]}:#{keyed_hash('limit', f'{scope}:{text}')}"


def partial_limit_key(
    task: HorsiesTask[..., Any], parameters: Parameters, kwargs: Mapping[str, Any], later: Set[str]
) -> str | None:
    """Return the limit key of a call whose parameters ``later`` get their values at run time.

    Raises ValueError if the key may need one of them, and the errors of :func:`limit_key_of`.
    """
    key = task.concurrency_key
    if key is not None and (unknown := sorted(later if callable(key) else later & set(names_in(key)))):
        problem = f"concurrency_key of {task.task_name} needs {', '.join(unknown)}, known only when the call begins"
        raise ValueError(f"{problem}; allowed: a key of arguments that are known before.")
    return limit_key_of(task, parameters, (), kwargs)


def _formatted(key: str, task: HorsiesTask[..., Any], bound: Mapping[str, Any]) -> str:
    try:
        return key.format_map(bound)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        problem = f"concurrency_key of {task.task_name} is {key!r}, which this call can't fill: {error!r}."
        raise ValueError(problem) from error


def unique_key_of(calls: CallBuilder, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the unique key of a call.

    It has short plain values as text, and long, nested or sensitive ones as a keyed hash. Raises ValueError if the
    task's own ``key`` makes no valid key of the arguments.
    """
    task, unique = calls.task, calls.task.unique
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
    return f"{path[:_SHOWN]} #{keyed_hash('unique', text)}"


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


def _own(
    option: str | Callable[..., str],
    calls: CallBuilder,
    arguments: Arguments,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    if isinstance(option, str):
        bound = calls.bound(arguments)
        values = {name: _value(bound, name) for name in set(names_in(option))}
        key = Formatter().vformat(option, (), values)
    else:
        values = calls.parameters.bind_partial(args, kwargs)
        key = option(*args, **kwargs)
    is_hidden = calls.mask.is_revealed_by(option, values)
    if not isinstance(key, str) or not 0 < len(key) <= KEY_LENGTH or key != clean_text(key):
        shown = MASKED if is_hidden else repr(key)
        raise ValueError(f"the unique key of {calls.path} is {shown}; allowed: a text of 1 to {KEY_LENGTH} characters.")
    # Hashed without the path, so that tasks can share a key.
    return f"#{keyed_hash('unique', key)}" if is_hidden else key


def grouped_call(calls: CallBuilder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Arguments, str]:
    """Return a call's arguments as an item, and the key of its group.

    Raises InvalidTask for an option of a single call, TypeError for positional arguments, ValueError for a call without
    a key, and TypeError or ValueError for a value that can't be stored.
    """
    task, gather = calls.task, calls.task.gather
    assert gather is not None  # the callers check
    for name in _NOT_SHARED:
        if (value := getattr(task, name)) is not None:
            raise InvalidTask(f"{name} is {value!r}; allowed: None, since {task.task_name} groups its calls.")
    if args:
        raise TypeError(f"{task.task_name} groups its calls; allowed: keyword arguments only.")
    item, key = calls.item(kwargs), _group_key(calls, gather, kwargs)
    if task.run_after is not None:
        _check_group_key_is_stable(key, calls, gather, item)
    return item, key


def _group_key(calls: CallBuilder, gather: Gather, kwargs: Mapping[str, Any]) -> str:
    """Return the key of a call; a keyed hash of it if it could reveal sensitive arguments."""
    key = gather.key(kwargs)
    return f"#{keyed_hash('gather', key)}" if calls.mask.is_revealed_by(gather.by, kwargs) else key


def _check_group_key_is_stable(key: str, calls: CallBuilder, gather: Gather, item: Arguments) -> None:
    """Raise ValueError if the key of a delayed call would change, or fail, when the call joins its group."""
    kwargs = decode_call([], json.loads(item.kwargs_text), typed=calls.columns["typed_payload"])[1]
    problem = f"Gather: the key of a call for later is {key!r}, and once the call is stored it"
    try:
        stored = _group_key(calls, gather, kwargs)
    except Exception as error:  # raised by the project's own callable
        raise ValueError(f"{problem} can't be computed: {error!r}; allowed: a key that stays the same.") from error
    if stored != key:
        raise ValueError(f"{problem} is {stored!r}; allowed: a key that stays the same.")


def names_in(key: str) -> list[str]:
    """Return the parameters that a format string names, nested specs included. Raises ValueError if it is malformed."""
    names: list[str] = []
    for _, name, spec, _ in Formatter().parse(key):
        if name is not None:
            names += [name.split(".")[0].split("[")[0], *names_in(spec or "")]
    return names


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
