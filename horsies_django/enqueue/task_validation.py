"""Validates the options of a task that the framework doesn't validate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from ..core.clock import DATES_ALLOWED, is_in_range
from ..core.grouping_policy import Gather
from ..core.limits import Rate
from ..core.option_parsers import LONGEST_DURATION, problems_of_mapper
from ..core.parameters import parameters_of
from ..core.registry import NAME_LENGTH, is_module_level
from ..core.retention import stored_retention
from ..core.retry import MAX_RETRIES, RetryPolicy
from ..core.serialization import clean_text
from ..core.unique import RESERVED, Unique
from .call_keys import names_in
from .task import HorsiesTask

QUEUE_LENGTH: Final = 100


def problems_of(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence for each option with an invalid value: its name, the value, and what is allowed."""
    name = task.queue_name
    if not (isinstance(name, str) and 0 < len(name) <= QUEUE_LENGTH and name == clean_text(name)):
        yield f"queue_name is {name!r}; allowed: a text of 1 to {QUEUE_LENGTH} characters."
    yield from _retry_problems(task)
    yield from problems_of_mapper(task.exception_mapper)
    yield from _atomic_problems(task)
    yield from _time_problems(task)
    if task.unique_key is not None and not (_is_key(task.unique_key)):
        yield f"unique_key is {task.unique_key!r}; allowed: a text of 1 to {NAME_LENGTH} characters."
    yield from problems_of_unique(task)
    if task.task_id is not None and not isinstance(task.task_id, UUID):
        yield f"task_id is {task.task_id!r}; allowed: a UUID, or None."
    if task.task_name == task.module_path and not is_module_level(task.func):
        allowed = "a module's function, under its own name, or one with a name=… of its own"
        yield f"{task.module_path!r} can't be found by that name; allowed: {allowed}."
    if task.metadata is not None and not isinstance(task.metadata, Mapping):
        yield f"metadata is {task.metadata!r}; allowed: a dict, or None."
    yield from _sensitive_problems(task)
    yield from _limit_problems(task)
    yield from _grouping_problems(task)
    if len(task.task_name) > NAME_LENGTH:
        yield f"the name {task.task_name!r} is too long; allowed: at most {NAME_LENGTH} characters."
    try:
        stored_retention(task.retention)
    except ValueError as error:
        yield f"retention: {error}"
    yield from problems_of_deadline(task)


def _time_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if task.timeout is not None and not (_is_number(task.timeout) and 0 < task.timeout <= LONGEST_DURATION):
        allowed = f"a positive number of seconds, {LONGEST_DURATION} at most, or None"
        yield f"timeout is {task.timeout!r}; allowed: {allowed}."
    if task.good_until is not None and not (
        isinstance(task.good_until, datetime) and timezone.is_aware(task.good_until)
    ):
        yield f"good_until is {task.good_until!r}; allowed: an aware datetime (timezone.now() + …)."
    for name in ("good_until", "run_after"):
        if isinstance(moment := getattr(task, name), datetime) and not is_in_range(moment):
            yield f"{name} is {moment!r}; allowed: {DATES_ALLOWED}."


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
    if task.max_attempts is not None and not (
        _is_whole(task.max_attempts) and 1 <= task.max_attempts <= MAX_RETRIES + 1
    ):
        yield f"max_attempts is {task.max_attempts!r}; allowed: a whole number from 1 to {MAX_RETRIES + 1}."
    if task.retry_policy is not None and not isinstance(task.retry_policy, RetryPolicy):
        yield f"retry_policy is {task.retry_policy!r}; allowed: a RetryPolicy."
    if task.retry_policy is not None and not (task.max_attempts is None and task.backoff is None):
        yield "retry_policy is set; allowed with it: neither max_attempts nor backoff."
    if isinstance(task.backoff, RetryPolicy):
        if task.max_attempts is not None:
            yield "backoff is a RetryPolicy, which has its own max_retries; allowed with it: no max_attempts."
    elif not (task.backoff is None or callable(task.backoff) or (_is_number(task.backoff) and task.backoff >= 0)):
        yield f"backoff is {task.backoff!r}; allowed: seconds from 0 on, a RetryPolicy or a callable."


def _atomic_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if not isinstance(task.atomic, bool):
        yield f"atomic is {task.atomic!r}; allowed: True or False."
    if task.atomic and inspect.iscoroutinefunction(task.func):
        yield f"atomic is True and {task.module_path} is a coroutine function; allowed: plain functions."


def _sensitive_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if not _is_sensitive(task.sensitive):
        allowed = "a collection of names, each a text, or a callable (name, value) -> bool, no coroutine function"
        yield f"sensitive is {task.sensitive!r}; allowed: {allowed}."


def _grouping_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    if task.gather is None:
        return
    if not isinstance(task.gather, Gather):
        yield f"gather is {task.gather!r}; allowed: a Gather, or None."
        return
    parameters = parameters_of(task.func, task.takes_context)
    first = parameters.own[:1]
    if not first or first[0] not in parameters.by_name or parameters.required - set(first):
        yield f"gather is set and {task.module_path} takes {parameters.signature}; allowed: one list of calls (items)."


def _limit_problems(task: HorsiesTask[..., Any]) -> Iterator[str]:
    """Yield a sentence for each option with a bad value."""
    max_concurrency, rate, scope = task.max_concurrency, task.rate_limit, task.concurrency_scope
    if max_concurrency is not None and not (
        isinstance(max_concurrency, int) and not isinstance(max_concurrency, bool) and max_concurrency >= 1
    ):
        yield f"max_concurrency is {max_concurrency!r}; allowed: a whole number from 1 on, or None."
    if rate is not None:
        try:
            Rate.parse(rate)
        except ValueError as error:
            yield f"rate_limit: {error}"
    if scope is not None and not (isinstance(scope, str) and 0 < len(scope) <= 100 and scope == clean_text(scope)):
        yield f"concurrency_scope is {scope!r}; allowed: a text of 1 to 100 characters."
    if max_concurrency is None and rate is None:
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
        names = names_in(key)
    except ValueError as error:
        return f", which is not a valid format string: {error}."
    parameters = list(inspect.signature(task.func).parameters)[int(task.takes_context) :]
    for name in names:
        if name not in parameters:
            return f", which names {name!r}; allowed: the parameters {', '.join(parameters) or '(none)'}."
    return None


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
    fields = set(names_in(unique.key)) if isinstance(unique.key, str) else ()
    wanted, source = (fields, "key") if unique.key is not None else (set(unique.by) - RESERVED, "by")
    if not parameters.accepts_any:
        for name in sorted(set(wanted) - set(parameters.own)):
            yield f"unique: {source} names {name!r}; allowed: {', '.join(parameters.own)}."
    for name in sorted(RESERVED & set(unique.by) & parameters.by_name):
        yield f"unique: by names {name!r}, which is a parameter as well; allowed: key={'{' + name + '}'!r}."


def _is_key(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_LENGTH and value == clean_text(value)


def _is_sensitive(value: object) -> bool:
    if callable(value):
        return not inspect.iscoroutinefunction(value)
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        return False
    return all(isinstance(name, str) and name for name in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    """Whether it is a number in the range of float. For a larger int, even math.isfinite() raises."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
