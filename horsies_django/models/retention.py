"""How long ended tasks and workflows are kept. It is computed once, as they end, and stored as ``kept_until``.

The retention of a task is the first that is set of: its row's, that of its queue's row, that of its queue in the
settings, that of its backend. So a setting that changes applies to the tasks that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import (
    Case,
    DateTimeField,
    DurationField,
    Expression,
    OuterRef,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from ..core.backends import backends_on
from ..core.compat import task_backends
from ..core.options import Options
from ..core.retention import finite
from ..core.status import TASK_TERMINAL_STATES, TaskStatus
from ..db.retention_expressions import RetainedUntil, RetentionOfState


def kept_until(status: TaskStatus, database: str) -> Expression:
    """Return the value of ``kept_until`` for rows, of whatever queues and backends, that end in ``status``.

    For successes a worker caches the queues' rows, so that the statement that runs thousands of times a second reads
    neither these rows nor JSON.
    """
    cached = _cached_queues.get(database) if status == TaskStatus.COMPLETED else None
    return _settings(database).until[status] if cached is None else cached.until


def workflow_kept_until(status: str, database: str) -> Expression:
    """Return the value of ``kept_until`` for workflows that end in ``status``, by the backend of each.

    Subworkflows have none: they are deleted with their root.
    """
    until = _settings(database).workflow_until[TaskStatus(status)]
    return Case(When(depth=0, then=until), output_field=DateTimeField())


def deletes_at_once(successes: Iterable[tuple[str, str, timedelta | None]], database: str) -> bool:
    """Return whether the worker has to delete any of these completed tasks, because its retention is 0.

    Each is given by its backend, its queue and its own retention.
    """
    settings, cached = _settings(database), _cached_queues.get(database)
    rows = cached.queues if cached else {}
    for backend, queue, own in successes:
        if (kept := rows.get(queue) if own is None else own) is not None:
            is_deleted = not kept
        else:
            is_deleted = settings.deletes.get((backend, queue), settings.deletes.get((backend, ""), False))
        if is_deleted:
            return True
    return False


def refresh_queue_settings(database: str, queues: Mapping[str, timedelta]) -> bool:
    """Cache the retention of successes that rows of queues set, for this process; return whether it changed."""
    cached = _cached_queues.get(database)
    if queues == (cached.queues if cached else {}):
        return False
    _cached_queues.pop(database, None)
    if queues:
        cases = [When(queue_name=name, then=_value(kept)) for name, kept in queues.items()]
        sources = ["retention", Case(*cases, output_field=DurationField())]
        _cached_queues[database] = _CachedQueues(
            dict(queues), _until(TaskStatus.COMPLETED, _options(database), sources)
        )
    return True


@dataclass(frozen=True, slots=True)
class _CachedQueues:
    """The retention of successes by queue name, and the resulting expression."""

    queues: Mapping[str, timedelta]
    until: Expression


#: By the alias of the database.
_cached_queues: Final[dict[str, _CachedQueues]] = {}


@dataclass(frozen=True, slots=True)
class _Settings:
    """What follows from the settings of all backends on one database."""

    until: Mapping[TaskStatus, Expression]
    workflow_until: Mapping[TaskStatus, Expression]
    #: Whether completed tasks are deleted at once, by backend and queue; an empty name stands for the other queues.
    deletes: Mapping[tuple[str, str], bool]


def _settings(database: str) -> _Settings:
    """Return the settings, cached on the first backend object, which Django replaces when settings change."""
    backend: Any = next((task_backends[alias] for alias in task_backends), None)
    cache: dict[str, _Settings] = vars(backend).setdefault("retention_settings", {}) if backend else {}
    if database not in cache:
        cache[database] = _read_settings(_options(database), database)
    return cache[database]


def _read_settings(backends: Mapping[str, Options], database: str) -> _Settings:
    from .queue import Queue

    rows = Queue.objects.using(database).filter(name=OuterRef("queue_name"))
    until, deletes = {}, {}
    for status in TASK_TERMINAL_STATES:
        of_queue = Subquery(rows.values(kept=RetentionOfState(status))[:1], output_field=DurationField())
        until[status] = _until(status, backends, [RetentionOfState(status), of_queue])
    until[TaskStatus.COMPLETED] = _until(TaskStatus.COMPLETED, backends, ["retention"])
    for alias, options in backends.items():
        own = options.retention.completed
        deletes[alias, ""] = own == timedelta()
        for name, queue in options.queues.items():
            deletes[alias, name] = queue.retention_for(TaskStatus.COMPLETED, own) == timedelta()
    return _Settings(until, {status: _until(status, backends) for status in TASK_TERMINAL_STATES}, deletes)


def _options(database: str) -> dict[str, Options]:
    return {alias: backend.config for alias, backend in backends_on(database).items()}


def _until(status: TaskStatus, backends: Mapping[str, Options], sources: Sequence[Any] | None = None) -> RetainedUntil:
    """Return the expression for rows that end in one state.

    ``sources`` are the retention of a task's row and of its queue's row. Without them it is for workflows, which have
    neither, and no queue. Rows of a backend that is no longer in the settings follow the first backend.
    """
    own = {alias: options.retention.retention_for(status) for alias, options in backends.items()}
    first, cases = next(iter(own.values()), None), list[When]()
    for alias, options in backends.items():
        is_its = {"backend": alias} if len(backends) > 1 else {}
        for name, queue in options.queues.items() if sources is not None else ():
            if (kept := queue.retention_for(status, own[alias])) != own[alias]:
                cases.append(When(**is_its, queue_name=name, then=_value(kept)))
        if own[alias] != first:
            cases.append(When(**is_its, then=_value(own[alias])))
    default = Case(*cases, default=_value(first)) if cases else _value(first)
    if not sources:
        return RetainedUntil(default)
    if sources == ["retention"] and first is None and not cases:
        return RetainedUntil(*sources)
    return RetainedUntil(Coalesce(*sources, default))


def _value(kept: timedelta | None) -> Value:
    return Value(finite(kept), DurationField())
