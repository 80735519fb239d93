"""Sends task signals after commit. Without receivers, it runs no query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.dispatch import Signal

from ..core.compat import FrameworkTaskResult, task_backends, task_finished
from ..core.results import TaskError
from ..core.signals import has_receivers, task_cancelled, task_crashed, task_expired, task_retrying
from ..core.status import AttemptOutcome, TaskStatus
from ..db.on_commit import on_commit_robust
from ..models import Task, TaskAttempt
from .backend import HorsiesBackend
from .django_result import result_of

#: Maximum tasks that one query reads.
BATCH: Final = 500

_STATUSES: Final[dict[Signal, TaskStatus]] = {task_cancelled: TaskStatus.CANCELLED, task_expired: TaskStatus.EXPIRED}

Job = Callable[[], None]


class _ThreadState(threading.local):
    """The function that this thread passes signal jobs to; None: it runs them itself."""

    put: Callable[[Job], None] | None = None


_thread_state: Final = _ThreadState()


@contextmanager
def dispatching_to(put: Callable[[Job], None]) -> Iterator[None]:
    """Pass the signal jobs of this thread to ``put``, so that receivers don't block the thread."""
    before, _thread_state.put = _thread_state.put, put
    try:
        yield
    finally:
        _thread_state.put = before


def ended_after_commit(signal: Signal, database: str, keys: Sequence[UUID]) -> None:
    """Send ``task_cancelled`` or ``task_expired`` for these tasks once the current transaction has committed."""
    if keys and has_receivers(signal):
        _after_commit(database, partial(_send_ended, signal, database, keys))


def crashed_after_commit(database: str, attempts: Mapping[UUID, int]) -> None:
    """Send the signals for attempts that were lost with their worker, once the current transaction has committed.

    ``attempts`` maps task ids to attempt numbers.
    """
    if attempts and any(map(has_receivers, (task_crashed, task_retrying, task_finished))):
        _after_commit(database, partial(_send_crashed, database, attempts))


def failures(database: str, attempts: Mapping[UUID, int]) -> Iterator[TaskAttempt]:
    """Yield the failed ones of these attempts, each with its task. ``attempts`` maps task ids to attempt numbers."""
    rows = TaskAttempt.objects.using(database).exclude(outcome=AttemptOutcome.COMPLETED).select_related("task")
    for keys in _batches(list(attempts)):
        for attempt in rows.filter(task__in=keys):
            if attempt.attempt == max(attempts[attempt.task_id], 1):
                yield attempt


def send_failure(attempt: TaskAttempt) -> None:
    """Send ``task_crashed``, ``task_retrying`` and ``task_finished`` for a failed attempt, as far as they apply."""
    row, signals = attempt.task, list[tuple[Signal, dict[str, Any]]]()
    error = TaskError[None](error_code=attempt.error_code, message=attempt.error_message)
    if attempt.outcome == AttemptOutcome.WORKER_FAILURE:
        signals.append((task_crashed, {"error": error, "will_retry": attempt.will_retry}))
    if attempt.will_retry:
        signals.append((task_retrying, {"error": error, "next_retry_at": row.next_retry_at}))
    elif row.status == TaskStatus.FAILED and row.attempt == attempt.attempt:
        signals.append((task_finished, {}))
    sender, result = sender_of(row.backend), None
    for signal, arguments in signals:
        if signal.has_listeners(sender):
            result = result or result_of(row)
            _send(signal, sender, result, **arguments)


def _send_crashed(database: str, attempts: Mapping[UUID, int]) -> None:
    for attempt in failures(database, attempts):
        send_failure(attempt)


def _send_ended(signal: Signal, database: str, keys: Sequence[UUID]) -> None:
    for batch in _batches(keys):
        for row in Task.objects.using(database).filter(pk__in=batch, status=_STATUSES[signal]):
            if signal.has_listeners(sender := sender_of(row.backend)):
                _send(signal, sender, result_of(row))


def _send(signal: Signal, sender: type[Any], result: FrameworkTaskResult[..., Any], **arguments: Any) -> None:
    signal.send_robust(sender=sender, task_result=result, **arguments)


def _after_commit(database: str, job: Job) -> None:
    on_commit_robust(database, _run_job, job)


def _run_job(job: Job) -> None:
    if _thread_state.put is None:
        job()
    else:
        _thread_state.put(job)


def _batches(keys: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))


def sender_of(alias: str) -> type[Any]:
    """Return the sender of signals for a backend's tasks: the backend's class, as in the framework."""
    return type(task_backends[alias]) if alias in task_backends else HorsiesBackend


def send_finished(rows: Iterable[Task]) -> None:
    """Send ``task_finished`` for these rows. Errors of receivers are logged."""
    for row in rows:
        task_finished.send_robust(sender=sender_of(row.backend), task_result=result_of(row))
