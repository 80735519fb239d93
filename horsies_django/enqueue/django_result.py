"""Converts a row into the TaskResult of Django's task framework."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder

from ..core.compat import (
    FrameworkTask,
    FrameworkTaskError,
    FrameworkTaskResult,
    InvalidTask,
    TaskResultStatus,
    framework_signals,
    task_finished,
    task_started,
)
from ..core.exceptions import (
    NotRegistered,
    TaskCancelled,
    TaskDiscarded,
    TaskExpired,
    TaskFailed,
    TaskNotResolved,
    TaskTimedOut,
    WorkerCrashed,
)
from ..core.options import NO_DEFAULTS
from ..core.registry import name_of, registry
from ..core.results import OperationalCode, OutcomeCode
from ..core.retention import read_retention
from ..core.retry import NO_RETRIES, RetryPolicy
from ..core.serialization import decode, decode_call
from ..core.status import AttemptOutcome, TaskStatus
from .task import HorsiesTask

if TYPE_CHECKING:
    from datetime import datetime

    from ..models import Task, TaskAttempt
    from ..models.attempt import AttemptError
    from .insert import NewRow

logger = logging.getLogger("horsies_django")

STATUSES: Final[dict[str, TaskResultStatus]] = {
    TaskStatus.PENDING: TaskResultStatus.READY,
    TaskStatus.CLAIMED: TaskResultStatus.READY,
    TaskStatus.RUNNING: TaskResultStatus.RUNNING,
    TaskStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
    TaskStatus.FAILED: TaskResultStatus.FAILED,
    TaskStatus.CANCELLED: TaskResultStatus.FAILED,
    TaskStatus.EXPIRED: TaskResultStatus.FAILED,
}

_EXCEPTION_BY_CODE: Final[dict[str | None, type[Exception]]] = {
    OutcomeCode.TASK_CANCELLED: TaskCancelled,
    OutcomeCode.TASK_EXPIRED: TaskExpired,
    OutcomeCode.TASK_TIMEOUT: TaskTimedOut,
    OutcomeCode.TASK_DISCARDED: TaskDiscarded,
    OperationalCode.WORKER_CRASHED: WorkerCrashed,
    OperationalCode.WORKER_RESOLUTION_ERROR: TaskNotResolved,
}


class _ResultEncoder(DjangoJSONEncoder):
    """Writes any value."""

    def default(self, o: Any) -> Any:
        """Return a value that JSON has."""
        try:
            return super().default(o)
        except TypeError:
            return str(o)


class HorsiesTaskResult(FrameworkTaskResult):  # type: ignore[type-arg]  # the backport has one parameter, Django two
    """The framework's result with a ``repr()`` that omits arguments and return value: they may be sensitive."""

    def to_json(self) -> str:
        """Return the result as a JSON object: its id, task, status, times, arguments, errors and return value.

        Values that JSON lacks, which the serializer "rich" reads, are written as Django's JSON encoder writes them, or
        as text.
        """
        errors = [
            {"exception_class_path": error.exception_class_path, "traceback": error.traceback} for error in self.errors
        ]
        plain = ("id", "args", "kwargs", "backend", "worker_ids", "attempts")
        times = ("enqueued_at", "started_at", "last_attempted_at", "finished_at")
        document = {name: getattr(self, name) for name in (*plain, *times)}
        document |= {"task": name_of(self.task), "status": str(self.status), "errors": errors}
        if self.status == TaskResultStatus.SUCCESSFUL:
            document["return_value"] = self.return_value
        return json.dumps(document, cls=_ResultEncoder)

    def __repr__(self) -> str:
        return f"TaskResult(id={self.id!r}, task={self.task.module_path!r}, status={str(self.status)!r})"


@contextmanager
def own_logging() -> Iterator[None]:
    """Disconnect the framework's receivers that log task events while a worker logs them itself.

    Our log lines have more details. Without these receivers, ``has_listeners`` also tells whether the project listens.
    """
    pairs = [
        (task_started, framework_signals.log_task_started),
        (task_finished, framework_signals.log_task_finished),
    ]
    disconnected = [(signal, receiver) for signal, receiver in pairs if signal.disconnect(receiver)]
    try:
        yield
    finally:
        for signal, receiver in disconnected:
            signal.connect(receiver)


def result_of(row: Task, *, task: FrameworkTask[..., Any] | None = None) -> FrameworkTaskResult[..., Any]:
    """Return the framework's result for ``row``. ``task`` is the enqueued task, if the caller has it."""
    attempts = _attempts(row)
    started_at = attempts[0].started_at if attempts else row.started_at
    result = HorsiesTaskResult(
        task=_with_row_options(task or task_at(row.task_name), row),
        id=str(row.pk),
        status=STATUSES[row.status],
        enqueued_at=row.sent_at,
        started_at=started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.started_at or (attempts[-1].started_at if attempts else None),
        args=_plain(row.args),
        kwargs=_plain(row.kwargs),
        backend=row.backend,
        errors=_errors(row, attempts),
        worker_ids=_worker_ids(row, attempts),
    )
    for name, value in _values(row).items():
        object.__setattr__(result, name, value)
    return result


def result_of_new(
    row: NewRow, times: Sequence[datetime], task: FrameworkTask[..., Any]
) -> FrameworkTaskResult[..., Any]:
    """Return the framework's result of a new call, whose row was not read. ``task`` is the enqueued task.

    ``times`` are when it was sent and, for a later call, when it is due.
    """
    arguments, columns = row.arguments, row.calls.columns
    result = HorsiesTaskResult(
        task=_result_task(row, times[1:], task),
        id=str(row.id),
        status=TaskResultStatus.READY,
        enqueued_at=times[0],
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=arguments.args,
        kwargs=arguments.kwargs,
        backend=columns["backend"],
        errors=[],
        worker_ids=[],
    )
    if columns["typed_payload"]:
        decoded = decode_call(arguments.args, arguments.kwargs, typed=True)
        for name, value in zip(("args", "kwargs"), decoded, strict=True):
            object.__setattr__(result, name, value)
    return result


def _result_task(row: NewRow, due: Sequence[datetime], task: FrameworkTask[..., Any]) -> FrameworkTask[..., Any]:
    """Return the task of the result of a call: the same for all calls of a task that only differ in their arguments."""
    from ..models import Task

    calls = row.calls
    is_shared = calls.has_fixed_options and task is calls.task
    if is_shared and calls.result_task is not None:
        return calls.result_task
    columns = {**calls.columns, **row.own, "run_after": due[0] if due else None}
    result_task = _with_row_options(task, Task(**columns))
    if is_shared:
        calls.result_task = result_task
    return result_task


def _values(row: Task) -> dict[str, Any]:
    """Return the decoded arguments and return value. The framework's own constructor would make them plain JSON."""
    from ..core.backends import reads_typed

    values: dict[str, Any] = {}
    try:
        typed = reads_typed(row.backend, row.typed_payload)
        if typed:
            values["args"], values["kwargs"] = decode_call(row.args, row.kwargs, typed=True)
        if row.status == TaskStatus.COMPLETED and row.result:
            values["_return_value"] = decode(row.result.get("ok"), typed=typed)
    except Exception as error:  # noqa: BLE001  # a class was removed or rejects its old values; the rest is readable
        logger.warning("stored value can't be decoded id=%s error=%r", row.pk, error)
    return values


def task_at(task_name: str) -> FrameworkTask[..., Any]:
    """Return the registered task of that name, or a placeholder, so that rows of removed tasks can be read."""
    try:
        return registry.find_task(task_name)
    except NotRegistered:
        return _placeholder(task_name)


def _with_row_options(task: FrameworkTask[..., Any], row: Task) -> FrameworkTask[..., Any]:
    """Copy a task with the options of its row. Doesn't validate them: settings may have changed since the send."""
    copy = object.__new__(type(task))
    for name in type(task).__dataclass_fields__:
        object.__setattr__(copy, name, getattr(task, name))
    options = {name: getattr(row, name) for name in ("priority", "queue_name", "backend", "run_after")}
    if isinstance(task, HorsiesTask):
        options["task_id"] = None  # with it, enqueue() of the copy would return this row again
        # Leave out a key made of the arguments, since a new call has others, and the time that a debounce sets.
        kept = ("good_until", "metadata", *(("unique_key",) if task.unique is None else ()))
        options |= {name: getattr(row, name) for name in kept} | _overridden_options(task, row)
        if task.unique is not None and task.unique.delay is not None:
            options["run_after"] = None
    for name, value in options.items():
        object.__setattr__(copy, name, value)
    return copy


def _overridden_options(task: HorsiesTask[..., Any], row: Task) -> dict[str, Any]:
    """Return the row's retention, and its timeout and retry options if they differ from the backend's defaults."""
    from ..core.backends import config_of

    try:
        defaults = config_of(row.backend).defaults
    except (InvalidTask, ImproperlyConfigured):
        defaults = NO_DEFAULTS
    options: dict[str, Any] = {
        "timeout": None if row.timeout == defaults.timeout else row.timeout,
        "retention": read_retention(row.retention, row.retention_by_state),
    }
    policy, is_single = RetryPolicy.read(row.retry_policy, row.pk), row.retry_policy == NO_RETRIES
    if policy != task.stored_policy(defaults) or is_single != (task.max_attempts == 1):
        options |= {"retry_policy": policy, "max_attempts": 1 if is_single else None, "backoff": None}
    return options


def _placeholder(task_name: str) -> FrameworkTask[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotRegistered(f"{task_name!r} is not a registered task.")

    missing.__module__, _, name = task_name.rpartition(".")
    missing.__name__ = missing.__qualname__ = name
    placeholder: HorsiesTask[..., Any] = object.__new__(HorsiesTask)
    for name, entry in HorsiesTask.__dataclass_fields__.items():
        object.__setattr__(placeholder, name, {} if name == "exception_mapper" else getattr(entry, "default", None))
    for name, value in {"func": missing, "name": missing.__name__, "_given_name": task_name}.items():
        object.__setattr__(placeholder, name, value)
    object.__setattr__(placeholder, "takes_context", False)
    return placeholder


def _attempts(row: Task) -> Sequence[TaskAttempt]:
    """Return the attempts that have ended. Runs no query if the row shows that there are none."""
    ended = row.attempt - (row.status == TaskStatus.RUNNING)
    return list(row.attempts.order_by("attempt")) if ended > 0 else []


def _worker_ids(row: Task, attempts: Sequence[TaskAttempt]) -> list[str]:
    ids = [attempt.worker_id for attempt in attempts]
    if row.attempt > len(attempts) and row.started_at and row.claimed_by_worker_id:
        ids.append(row.claimed_by_worker_id)
    return ids


def _errors(row: Task, attempts: Sequence[TaskAttempt]) -> list[FrameworkTaskError]:
    errors = [
        _error(attempt.exception_class, attempt.traceback, attempt.error_code, attempt.error_message)
        for attempt in attempts
        if attempt.outcome != AttemptOutcome.COMPLETED
    ]
    if row.status in (TaskStatus.CANCELLED, TaskStatus.EXPIRED):
        message = ((row.result or {}).get("err") or {}).get("message", "")
        errors.append(_error_without_exception(row.error_code, message))
    return errors


def add_error(result: FrameworkTaskResult[..., Any], error: AttemptError) -> None:
    """Turn the result of a running task into that of one that has failed with this error."""
    result.errors.append(_error(error.exception_class, error.traceback, error.code, error.message))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)


def _error(exception_class: str, traceback: str, code: str, message: str) -> FrameworkTaskError:
    if exception_class:
        return FrameworkTaskError(exception_class_path=exception_class, traceback=traceback)
    return _error_without_exception(code, message)


def _error_without_exception(code: str | None, message: str) -> FrameworkTaskError:
    kind = _EXCEPTION_BY_CODE.get(code, TaskFailed)
    path = f"{kind.__module__}.{kind.__qualname__}"
    return FrameworkTaskError(exception_class_path=path, traceback=f"{path}: {message or code}\n")


def _plain(value: Any) -> Any:
    """Return a value that the framework can display, even for damaged arguments."""
    return value if isinstance(value, list | dict) else []
