"""How long ended tasks and workflows are kept. It is computed once, as they end, and stored as ``kept_until``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self, cast

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
from ..core.options import Options
from ..core.retention import finite
from ..core.status import TASK_TERMINAL_STATES, TaskStatus
from ..db.retention_expressions import RetainedUntil, RetentionOfState


def kept_until(status: TaskStatus, database: str) -> Expression:
    """Return the value of ``kept_until`` for rows, of whatever queues and backends, that end in ``status``.

    The retention comes from the first that is set of: the task's row, the queue's row, the queue's settings, the
    backend's settings for that state. For successes a worker caches the queues' rows, so that the statement that runs
    thousands of times a second reads neither these rows nor JSON.
    """
    cached = _cached_queues.get(database) if status == TaskStatus.COMPLETED else None
    return _settings(database).until[status] if cached is None else cached.until


def workflow_kept_until(status: str, database: str) -> Expression:
    """Return the value of ``kept_until`` for workflows that end in ``status``, by the backend of each.

    Subworkflows have none: they are deleted with their root.
    """
    until = _settings(database).workflow_until[TaskStatus(status)]
    return Case(When(depth=0, then=until), output_field=DateTimeField())


def deletes_at_once(ends: Iterable[tuple[str, str, timedelta | None, bool]], database: str) -> bool:
    """Return whether the worker may have to delete any of these tasks, because its retention is 0.

    Each is given by its backend, its queue, its own retention, and whether it is a success. It does not read the
    retention by state of a task's or a queue's row: the reaper applies that.
    """
    settings, cached = _settings(database), _cached_queues.get(database)
    rows = cached.queues if cached else {}
    if settings.keeps_all and all(rows.values()):
        return any(is_success and own is not None and not own for _, _, own, is_success in ends)

    def is_deleted(backend: str, queue: str, retention: timedelta | None, is_success: bool) -> bool:
        own = (rows.get(queue) if retention is None else retention) if is_success else None
        status = TaskStatus.COMPLETED if is_success else TaskStatus.FAILED
        return settings.deletes_at_once(status, backend, queue) if own is None else not own

    return any(is_deleted(*end) for end in ends)


def refresh_queue_settings(database: str, queues: Mapping[str, timedelta]) -> bool:
    """Cache the retention of successes that rows of queues set, for this process; return whether it changed."""
    known = _cached_queues.get(database)
    if queues == (known.queues if known else {}):
        return False
    _cached_queues.pop(database, None)
    if queues:
        cases = [When(queue_name=name, then=_value(kept)) for name, kept in queues.items()]
        sources = ["retention", Case(*cases, output_field=DurationField())]
        until = _until(TaskStatus.COMPLETED, _options(database), sources)
        _cached_queues[database] = _CachedQueues(dict(queues), until)
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
    """The expressions that follow from the settings of all backends on one database."""

    until: Mapping[TaskStatus, Expression]
    workflow_until: Mapping[TaskStatus, Expression]
    #: Whether tasks are deleted at once, by state, backend and name of each queue with its own setting.
    queues: Mapping[tuple[TaskStatus, str, str], bool]
    #: The states and backends whose tasks are not deleted at once.
    has_retention: frozenset[tuple[TaskStatus, str]]
    #: Whether none of these settings deletes a task at once.
    keeps_all: bool

    @classmethod
    def build(cls, backends: Mapping[str, Options], database: str) -> Self:
        queues = {
            (status, alias, name): queue.retention[status.lower()] == timedelta()
            for status in TASK_TERMINAL_STATES
            for alias, options in backends.items()
            for name, queue in options.queues.items()
            if status.lower() in queue.retention
        }
        keeping = {
            (status, alias)
            for status in TASK_TERMINAL_STATES
            for alias, options in backends.items()
            if options.retention.retention_for(status) != timedelta()
        }
        until = {
            status: _until(status, backends, [RetentionOfState(status), _queue_retention(status, database)])
            for status in TASK_TERMINAL_STATES
        }
        until[TaskStatus.COMPLETED] = _until(TaskStatus.COMPLETED, backends, ["retention"])
        workflow_until = {status: _workflow_until(status, backends) for status in TASK_TERMINAL_STATES}
        keeps_all = not any(queues.values()) and len(keeping) == len(TASK_TERMINAL_STATES) * len(backends)
        return cls(until, workflow_until, queues, frozenset(keeping), keeps_all)

    def deletes_at_once(self, status: TaskStatus, backend: str, queue_name: str) -> bool:
        """Return whether a task of that queue, without its own retention, has to be deleted at once."""
        own = self.queues.get((status, backend, queue_name)) if self.queues else None
        return (status, backend) not in self.has_retention if own is None else own


def _settings(database: str) -> _Settings:
    """Return the settings, cached on a backend object, which Django replaces when settings change."""
    backends = backends_on(database)
    if not backends:
        return _Settings.build({}, database)
    attributes = vars(next(iter(backends.values())))
    if "retention_settings" not in attributes:
        attributes["retention_settings"] = _Settings.build(_options(database), database)
    return cast("_Settings", attributes["retention_settings"])


def _options(database: str) -> dict[str, Options]:
    return {alias: backend.config for alias, backend in backends_on(database).items()}


def _queue_retention(status: TaskStatus, database: str) -> Subquery:
    """Return the retention that the row of a task's queue sets for a state other than success."""
    from .queue import Queue

    rows = Queue.objects.using(database).filter(name=OuterRef("queue_name"))
    return Subquery(rows.values(kept=RetentionOfState(status))[:1], output_field=DurationField())


def _until(status: TaskStatus, backends: Mapping[str, Options], sources: Sequence[Any]) -> RetainedUntil:
    """Return the expression for one state; ``sources`` are the retention of the task's row and the queue's row.

    Rows of a backend that is no longer in the settings follow the first backend.
    """
    cases: list[When] = []
    first: timedelta | None = None
    for number, (alias, options) in enumerate(backends.items()):
        own = options.retention.retention_for(status)
        if number == 0:
            first = own
        is_its = {"backend": alias} if len(backends) > 1 else {}
        for name, queue in options.queues.items():
            if (kept := queue.retention_for(status, own)) != own:
                cases.append(When(**is_its, queue_name=name, then=_value(kept)))
        if own != first:
            cases.append(When(**is_its, then=_value(own)))
    if cases:
        return RetainedUntil(Coalesce(*sources, Case(*cases, default=_value(first))))
    if len(sources) == 1 and first is None:
        return RetainedUntil(*sources)
    return RetainedUntil(Coalesce(*sources, _value(first)))


def _workflow_until(status: TaskStatus, backends: Mapping[str, Options]) -> RetainedUntil:
    """Return the expression for workflows that end in one state; workflows have no retention of their own."""
    kept = {alias: options.retention.retention_for(status) for alias, options in backends.items()}
    first = next(iter(kept.values()), None)
    cases = [When(backend=alias, then=_value(own)) for alias, own in kept.items() if own != first]
    return RetainedUntil(Case(*cases, default=_value(first)) if cases else _value(first))


def _value(kept: timedelta | None) -> Value:
    return Value(finite(kept), DurationField())
