"""Sending signals of what has been committed, to whoever listens; where nobody does, nothing is asked or made."""

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

#: Tasks of which one statement asks.
BATCH: Final = 500

_STATUSES: Final[dict[Signal, TaskStatus]] = {task_cancelled: TaskStatus.CANCELLED, task_expired: TaskStatus.EXPIRED}

Job = Callable[[], None]


class _ThreadState(threading.local):
    """To whom this thread hands the sending over."""

    put: Callable[[Job], None] | None = None


_thread_state: Final = _ThreadState()


@contextmanager
def dispatching_to(put: Callable[[Job], None]) -> Iterator[None]:
    """What this thread commits is told by who takes the jobs: receivers must not hold it up."""
    before, _thread_state.put = _thread_state.put, put
    try:
        yield
    finally:
        _thread_state.put = before


def ended_after_commit(signal: Signal, database: str, keys: Sequence[UUID]) -> None:
    """Tell that these tasks were cancelled, or have expired, once the current transaction has committed."""
    if keys and has_receivers(signal):
        _after_commit(database, partial(_send_ended, signal, database, keys))


def crashed_after_commit(database: str, attempts: Mapping[UUID, int]) -> None:
    """Tell what has become of tasks whose attempts with these numbers were lost, once it is committed."""
    if attempts and any(map(has_receivers, (task_crashed, task_retrying, task_finished))):
        _after_commit(database, partial(_send_crashed, database, attempts))


def failures(database: str, attempts: Mapping[UUID, int]) -> Iterator[TaskAttempt]:
    """Yield the attempts with these numbers that have failed, each with its task."""
    rows = TaskAttempt.objects.using(database).exclude(outcome=AttemptOutcome.COMPLETED).select_related("task")
    for keys in _batches(list(attempts)):
        for attempt in rows.filter(task__in=keys):
            if attempt.attempt == max(attempts[attempt.task_id], 1):
                yield attempt


def send_failure(attempt: TaskAttempt) -> None:
    """Tell of an attempt that has failed, was it the last or not, and was it lost with its worker or not."""
    row, told = attempt.task, list[tuple[Signal, dict[str, Any]]]()
    error = TaskError[None](error_code=attempt.error_code, message=attempt.error_message)
    if attempt.outcome == AttemptOutcome.WORKER_FAILURE:
        told.append((task_crashed, {"error": error, "will_retry": attempt.will_retry}))
    if attempt.will_retry:
        told.append((task_retrying, {"error": error, "next_retry_at": row.next_retry_at}))
    elif row.status == TaskStatus.FAILED and row.attempt == attempt.attempt:
        told.append((task_finished, {}))
    sender, result = sender_of(row.backend), None
    for signal, facts in told:
        if signal.has_listeners(sender):
            result = result or result_of(row)
            _send(signal, sender, result, **facts)


def _send_crashed(database: str, attempts: Mapping[UUID, int]) -> None:
    for attempt in failures(database, attempts):
        send_failure(attempt)


def _send_ended(signal: Signal, database: str, keys: Sequence[UUID]) -> None:
    for some in _batches(keys):
        for row in Task.objects.using(database).filter(pk__in=some, status=_STATUSES[signal]):
            if signal.has_listeners(sender := sender_of(row.backend)):
                _send(signal, sender, result_of(row))


def _send(signal: Signal, sender: type[Any], result: FrameworkTaskResult[..., Any], **facts: Any) -> None:
    signal.send_robust(sender=sender, task_result=result, **facts)


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
    """Return the class that sends the signals of a backend's tasks: the backend's own, as the framework has it."""
    return type(task_backends[alias]) if alias in task_backends else HorsiesBackend


def send_finished(rows: Iterable[Task]) -> None:
    """Send ``task_finished`` for these rows; what a receiver raises is logged."""
    for row in rows:
        task_finished.send_robust(sender=sender_of(row.backend), task_result=result_of(row))
