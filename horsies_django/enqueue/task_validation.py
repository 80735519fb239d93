"""Validates the options of a task that the framework doesn't validate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from ..core.annotations import bare_signature
from ..core.backends import config_of
from ..core.clock import DATES_ALLOWED, is_in_range
from ..core.grouping_policy import Gather
from ..core.limits import Rate, terms_of
from ..core.option_parsers import LONGEST_DURATION, problems_of_mapper
from ..core.parameters import parameters_of
from ..core.registry import NAME_LENGTH, is_module_level
from ..core.retention import stored_retention
from ..core.retry import MAX_RETRIES, RetryPolicy
from ..core.serialization import clean_text
from ..core.unique import RESERVED, Unique
from ..db.row_key import KEY_LENGTH, model_of, problem_of_model
from .call_keys import names_in
from .task import HorsiesTask

QUEUE_LENGTH: Final = 100


def _is_text(value: object, length: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= length and value == clean_text(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    """Whether it is a number in the range of float. For a larger int, even math.isfinite() raises."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_sensitive(value: object) -> bool:
    if callable(value):
        return not inspect.iscoroutinefunction(value)
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        return False
    return all(isinstance(name, str) and name for name in value)


#: The test of each option, and what is allowed. None is, too, if it is the default.
_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "queue_name": (lambda name: _is_text(name, QUEUE_LENGTH), f"a text of 1 to {QUEUE_LENGTH} characters"),
    "max_attempts": (
        lambda count: _is_whole(count) and 1 <= count <= MAX_RETRIES + 1,
        f"a whole number from 1 to {MAX_RETRIES + 1}",
    ),
    "retry_policy": (lambda policy: isinstance(policy, RetryPolicy), "a RetryPolicy"),
    "backoff": (
        lambda backoff: isinstance(backoff, RetryPolicy) or callable(backoff) or (_is_number(backoff) and backoff >= 0),
        "seconds from 0 on, a RetryPolicy or a callable",
    ),
    "atomic": (lambda atomic: isinstance(atomic, bool), "True or False"),
    "timeout": (
        lambda timeout: _is_number(timeout) and 0 < timeout <= LONGEST_DURATION,
        f"a positive number of seconds, {LONGEST_DURATION} at most, or None",
    ),
    "good_until": (
        lambda moment: isinstance(moment, datetime) and timezone.is_aware(moment),
        "an aware datetime (timezone.now() + …)",
    ),
    "unique_key": (lambda key: _is_text(key, NAME_LENGTH), f"a text of 1 to {NAME_LENGTH} characters"),
    "unique": (lambda unique: isinstance(unique, Unique), "a Unique, or None"),
    "task_id": (lambda task_id: isinstance(task_id, UUID), "a UUID, or None"),
    "metadata": (lambda metadata: isinstance(metadata, Mapping), "a dict, or None"),
    "sensitive": (
        _is_sensitive,
        "a collection of names, each a text, or a callable (name, value) -> bool, no coroutine function",
    ),
    "max_concurrency": (lambda count: _is_whole(count) and count >= 1, "a whole number from 1 on, or None"),
    "one_at_a_time": (lambda option: option == "about", "'about', or None"),
    "concurrency_scope": (lambda scope: _is_text(scope, 100), "a text of 1 to 100 characters"),
    "gather": (lambda gather: isinstance(gather, Gather), "a Gather, or None"),
}


def problems_of(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence for each option with an invalid value: its name, the value, and what is allowed.

    Each check relies on those before it.
    """
    for name, (is_valid, allowed) in _RULES.items():
        value = getattr(task, name)
        is_unset = value is None and HorsiesTask.__dataclass_fields__[name].default is None
        if not (is_unset or is_valid(value)):
            yield f"{name} is {value!r}; allowed: {allowed}."
    yield from _retry_problems(task)
    yield from problems_of_mapper(task.exception_mapper)
    if task.atomic and inspect.iscoroutinefunction(task.func):
        yield f"atomic is True and {task.module_path} is a coroutine function; allowed: plain functions."
    for name in ("good_until", "run_after"):
        if isinstance(moment := getattr(task, name), datetime) and not is_in_range(moment):
            yield f"{name} is {moment!r}; allowed: {DATES_ALLOWED}."
    yield from problems_of_unique(task)
    if task.task_name == task.module_path and not is_module_level(task.func):
        allowed = "a module's function, under its own name, or one with a name=… of its own"
        yield f"{task.module_path!r} can't be found by that name; allowed: {allowed}."
    yield from _limit_problems(task)
    yield from _grouping_problems(task)
    if len(task.task_name) > NAME_LENGTH:
        yield f"the name {task.task_name!r} is too long; allowed: at most {NAME_LENGTH} characters."
    try:
        stored_retention(task.retention)
    except ValueError as error:
        yield f"retention: {error}"
    yield from _about_problems(task)
    yield from problems_of_deadline(task)


def _about_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if (row := task.about_row) is None or (model := model_of(row.model)) is None:
        return
    if problem := problem_of_model(model, config_of(task.backend).database):
        yield f"about(): {problem}"
    if len(row.key) > KEY_LENGTH:
        yield f"about(): a row of {row.model} has a key of {len(row.key)} characters; allowed: {KEY_LENGTH}."


def problems_of_deadline(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence if the deadline is before the time at which the task is due: it could never run."""
    if task.good_until is None:
        return
    due = task.run_after if task.unique is None else task.run_after or task.unique.delay
    if isinstance(due, timedelta):
        due = timezone.now() + due
    if due is not None and task.good_until < due:
        yield f"good_until is {task.good_until}, and the task is due at {due}; allowed: a later good_until."


def _retry_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if task.retry_policy is not None and not (task.max_attempts is None and task.backoff is None):
        yield "retry_policy is set; allowed with it: neither max_attempts nor backoff."
    try:
        task.backoff_takes_context()
    except TypeError as error:
        yield f"backoff is {task.backoff!r}: {error}; allowed: a function (exception, task_result) or (context)."
    if isinstance(task.backoff, RetryPolicy) and task.max_attempts is not None:
        yield "backoff is a RetryPolicy, which has its own max_retries; allowed with it: no max_attempts."


def _grouping_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if task.gather is None:
        return
    parameters = parameters_of(task.func, task.takes_context)
    first = parameters.own[:1]
    if not first or first[0] not in parameters.by_name or parameters.required - set(first):
        yield f"gather is set and {task.module_path} takes {parameters.signature}; allowed: one list of calls (items)."


def _limit_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    max_concurrency, rate = terms_of(task)
    for name in ("max_concurrency", "concurrency_key"):
        if task.one_at_a_time is not None and (value := getattr(task, name)) is not None:
            yield f"{name} is {value!r} and one_at_a_time is {task.one_at_a_time!r}; allowed: one of them."
    yield from () if rate is None else _rate_problems(rate)
    if max_concurrency is None and rate is None:
        for name in ("concurrency_key", "concurrency_scope"):
            if (value := getattr(task, name)) is not None:
                yield f"{name} is {value!r}, but there is no limit; allowed: with max_concurrency, rate_limit or both."
    elif task.gather is not None:
        yield "gather is set; allowed with it: neither max_concurrency nor rate_limit."
    if task.concurrency_key is not None and (problem := _problem_of_key(task.concurrency_key, task)):
        yield f"concurrency_key is {task.concurrency_key!r}{problem}"


def _rate_problems(rate: str) -> Iterator[str]:
    try:
        Rate.parse(rate)
    except ValueError as error:
        yield f"rate_limit: {error}"


def _problem_of_key(key: str | Callable[..., str | None], task: HorsiesTask[..., Any]) -> str | None:
    if callable(key):
        return "; allowed: a plain function, no coroutine." if inspect.iscoroutinefunction(key) else None
    if not isinstance(key, str) or not key:
        return "; allowed: a text like 'customer-{customer_id}', a callable with the task's arguments, or None."
    try:
        names = names_in(key)
    except ValueError as error:
        return f", which is not a valid format string: {error}."
    parameters = list(bare_signature(task.func).parameters)[int(task.takes_context) :]
    for name in names:
        if name not in parameters:
            return f", which names {name!r}; allowed: the parameters {', '.join(parameters) or '(none)'}."
    return None


def problems_of_unique(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence for each conflict of ``unique`` with the task's function or its other options."""
    unique = task.unique
    if unique is None:
        return
    if task.gather is not None:
        yield "unique is set and gather as well; allowed: one of them, since each handles repeated calls."
    if unique.wait is not None and task.run_after is not None:
        yield f"run_after is {task.run_after!r} and unique is a debounce; allowed: one of them, as each sets the time."
    parameters = parameters_of(task.func, task.takes_context)
    fields = set(names_in(unique.key)) if isinstance(unique.key, str) else ()
    wanted, source = (fields, "key") if unique.key is not None else (set(unique.by) - RESERVED, "by")
    if not parameters.accepts_any:
        for name in sorted(set(wanted) - set(parameters.own)):
            yield f"unique: {source} names {name!r}; allowed: {', '.join(parameters.own)}."
    for name in sorted(RESERVED & set(unique.by) & parameters.by_name):
        yield f"unique: by names {name!r}, which is a parameter as well; allowed: key={'{' + name + '}'!r}."
