"""The options of ``@task``, as an editor completes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypedDict

from .option_parsers import DurationOption
from .retry import RetryPolicy
from .unique import Unique

#: ``(exception, task_result) -> seconds``, or None to give up.
Backoff = Callable[[BaseException | None, Any], float | None]

#: How long an ended task is kept: a completed one, or by state; None is for ever. See the page on retention.
Retention = DurationOption | None | Mapping[str, DurationOption | None]

#: Names of arguments and of keys in results, or ``(name, value) -> bool``: values that are hidden from viewers.
Sensitive = Collection[str] | Callable[[str, Any], bool]


#: A format string over the arguments, or a callable that returns a text; None means no limit for the call.
ConcurrencyKey = str | Callable[..., str | None]


class TaskOptions(TypedDict, total=False):
    """The options of ``@task``; :class:`~horsies_django.enqueue.task.HorsiesTask` explains each."""

    name: str | None
    aliases: Collection[str]
    priority: int
    queue_name: str
    backend: str
    max_attempts: int | None
    backoff: float | RetryPolicy | Backoff | None
    retry_policy: RetryPolicy | None
    exception_mapper: Mapping[type[BaseException], str]
    timeout: float | None
    retention: Retention
    atomic: bool
    concurrency_key: ConcurrencyKey | None
    concurrency_scope: str | None
    max_concurrency: int | None
    rate_limit: str | None
    metadata: Mapping[str, Any] | None
    sensitive: Sensitive
    unique: Unique | None
