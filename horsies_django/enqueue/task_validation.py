"""Validates the options of a task that the framework doesn't validate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from ..core.clock import DATES_ALLOWED, is_in_range
from ..core.grouping_policy import Gather
from ..core.names import NAME_LENGTH, is_module_level
from ..core.option_parsers import LONGEST_DURATION, problems_of_mapper
from ..core.retention import stored_retention
from ..core.retry import MAX_RETRIES, RetryPolicy
from ..core.serialization import clean_text
from . import limits
from .call_builder import parameters_of
from .task import HorsiesTask
from .unique_keys import problems_of_unique

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
    yield from limits.problems_of(task)
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
