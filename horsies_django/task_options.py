"""The options of ``@task``, as an editor completes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, TypedDict

from .retries import RetryPolicy
from .unique import Unique

#: ``(exception, task_result) -> seconds``, or None to give up.
Backoff = Callable[[BaseException | None, Any], float | None]

#: Names of arguments and of keys in results, or ``(name, value) -> bool``: what people who look are not to see.
Sensitive = Collection[str] | Callable[[str, Any], bool]


class TaskOptions(TypedDict, total=False):
    """What ``@task`` takes beside ``takes_context``; :class:`~horsies_django.tasks.HorsiesTask` says what each does."""

    priority: int
    queue_name: str
    backend: str
    max_attempts: int | None
    backoff: float | RetryPolicy | Backoff | None
    retry_policy: RetryPolicy | None
    exception_mapper: Mapping[type[BaseException], str]
    timeout: float | None
    retention: timedelta | float | str | None
    atomic: bool
    metadata: Mapping[str, Any] | None
    sensitive: Sensitive
    unique: Unique | None
