"""Maps what a task's function returned or raised to a result that can be stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from traceback import format_exception
from typing import Any, Final

from ..core.compat import FrameworkTask
from ..core.exceptions import (
    Discard,
    NotRegistered,
    Retry,
    Snooze,
    StepFailed,
    StepMismatch,
    TaskRestarted,
    TaskRevoked,
    TaskSuspended,
    TaskTimeLimit,
    reported_error,
)
from ..core.mask import mask_of_task
from ..core.middleware import AttemptOutcome
from ..core.results import ContractCode, OperationalCode, OutcomeCode, TaskError, TaskResult
from ..core.retry import retry_delay, retrying_policy
from ..core.serialization import check_size, clean_text, dumps, encode
from ..core.type_check import return_problem
from ..db.errors import is_outage
from ..db.snooze_on_outage import OUTAGE_SNOOZE
from ..enqueue.context import TaskContext
from ..enqueue.django_result import add_error
from ..enqueue.task import HorsiesTask
from ..models.attempt import AttemptError
from ..models.claims import Completion, error_result
from ..models.operator_actions import ENGINE_TASK_PREFIX
from . import tracebacks
from .execution import Execution, ExecutionResult

logger = logging.getLogger("horsies_django.worker")

#: Commits of an atomic task that may fail because of the database before such a failure uses up a retry: a server that
#: restarts recovers in that time, a limit that ends the session during each run does not.
MAX_LOST_COMMITS: Final = 5


class InvalidCall(Exception):
    """The row can't be turned into a call. The cause says why."""

    def __init__(self, code: OperationalCode) -> None:
        self.code = code


def from_value(execution: Execution, task: FrameworkTask[..., Any], value: Any) -> ExecutionResult:
    """Return the result for ``value``, which the function returned and which may be a :class:`TaskResult`."""
    if execution.decided is not None:
        logger.warning("task returned after its run was decided id=%s: what it returned is dropped", execution.task_id)
        return from_exception(execution, task, execution.decided)
    if execution.has_replay:
        execution.replay.warn_of_unmet()
    if isinstance(value, TaskResult):
        if value.is_err():
            return _returned_error(execution, task, value.err)
        value = value.ok
    if problem := return_problem(task.func, value, lambda: mask_of_task(task)):
        return _failed(execution, task, ContractCode.RETURN_TYPE_MISMATCH, TypeError(problem))
    try:
        encoded = encode(value, typed=execution.is_typed, where="the return value")
        result = '{"ok":null}' if encoded is None else dumps({"ok": encoded})
        check_size(result, execution.options.max_payload_bytes, "the return value")
    except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
        return _failed(execution, task, OperationalCode.WORKER_SERIALIZATION_ERROR, error)
    return ExecutionResult(execution, _completion(execution, result))


def from_exception(
    execution: Execution, task: FrameworkTask[..., Any] | None, raised: BaseException
) -> ExecutionResult:
    """Return the result of a function that raised or could not be called at all.

    An outage of the database before the function began puts the task off. One that kept the transaction of an atomic
    task from its commit, after the function had returned, or a step or a turn from its record, has the task run again:
    without using up a retry after progress, and a few times without.
    """
    is_timeout = execution.stop_reason is TaskTimeLimit
    if execution.decided is not None and raised is not execution.decided and execution.stop_reason is None:
        logger.warning("task ended after its run was decided id=%s: %r is dropped", execution.task_id, raised)
        raised = execution.decided
    if isinstance(raised, TaskSuspended) and not is_timeout:
        columns = raised.columns if isinstance(raised, TaskRestarted) else None
        ended = _completion(execution, "null", delay=raised.delay)
        return ExecutionResult(execution, ended._replace(waits_for=raised.waits_for, restart=columns))
    if is_outage(raised) and not execution.has_begun:
        raised = Snooze(OUTAGE_SNOOZE)
    if isinstance(raised, InvalidCall) and not is_timeout:
        return _failed(execution, None, raised.code, raised.__cause__ or raised)
    if isinstance(raised, Snooze) and not is_timeout:
        return ExecutionResult(execution, _completion(execution, "null", delay=raised.after))
    result = _failed(execution, task, _code_of(raised, execution, task), raised)
    claim = execution.claimed
    progress = execution.replay.last_progress if execution.has_replay else 0
    # Lost since the last progress; and before the last retry() by an operator, or restart() by the body.
    uncharged = max(0, claim.attempt - 1 - max(claim.retry_count, progress))
    is_unstored = execution.has_returned or raised is execution.decided
    if is_outage(raised) and is_unstored and uncharged < MAX_LOST_COMMITS:
        delay = OUTAGE_SNOOZE * 2.0**uncharged
        result.completion = result.completion._replace(delay=delay, is_charged=False)
    return result


def outcome_of(
    execution: Execution, task: FrameworkTask[..., Any], error: BaseException | TaskError[Any]
) -> tuple[AttemptOutcome, str]:
    """Return the outcome of an attempt that ends with this exception, or returns this error; and its error code.

    A task's own ``backoff`` is not called.
    """
    if execution.stop_reason is TaskRevoked:
        return AttemptOutcome.CANCELLED, OutcomeCode.TASK_CANCELLED.value
    if isinstance(error, TaskError):
        raised, code = None, str(error.error_code)
    else:
        raised, code = error, str(_code_of(error, execution, task))
    if isinstance(raised, Snooze | TaskSuspended) and code != OutcomeCode.TASK_TIMEOUT:
        return AttemptOutcome.SNOOZED, ""
    if isinstance(raised, Discard):
        return AttemptOutcome.DISCARDED, code
    will_retry = retrying_policy(execution.claimed, code, raised) is not None
    return AttemptOutcome.RETRYING if will_retry else AttemptOutcome.FAILED, code


def is_unknown_call(execution: Execution, raised: BaseException) -> bool:
    """Whether a call failed before it started because this worker does not know the task or one of its values."""
    if execution.stop_reason is not None:
        return False
    if isinstance(raised, NotRegistered):
        return execution.claimed.task_name.startswith(
            ENGINE_TASK_PREFIX
        )  # a condition or a workflow that the row names
    return isinstance(raised, InvalidCall) or (isinstance(raised, TypeError) and _is_bad_call(raised))


def _is_bad_call(raised: BaseException) -> bool:
    """Whether the call itself failed before the function started: its arguments no longer fit the signature."""
    trace = raised.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is None or tracebacks.is_of_worker(trace)


def _code_of(raised: BaseException, execution: Execution, task: FrameworkTask[..., Any] | None) -> str:
    """Return the error code of an exception.

    That of its class or its nearest base, by the task's mapper, then the backend's; unless it has a code of its own.
    For a ``Retry`` with a cause, that of the cause if a mapper has it.
    """
    if execution.stop_reason is TaskTimeLimit:
        return OutcomeCode.TASK_TIMEOUT
    if isinstance(raised, Discard | StepMismatch):
        return OutcomeCode.TASK_DISCARDED if isinstance(raised, Discard) else ContractCode.STEP_MISMATCH
    reported = reported_error(raised)
    if isinstance(reported, Retry):
        return OutcomeCode.TASK_RETRY
    if isinstance(raised, NotRegistered) and execution.claimed.task_name.startswith(ENGINE_TASK_PREFIX):
        return OperationalCode.WORKER_RESOLUTION_ERROR
    if isinstance(raised, TypeError) and _is_bad_call(raised):
        return ContractCode.ARGUMENT_TYPE_MISMATCH
    own = task.exception_mapper if isinstance(task, HorsiesTask) else {}
    for mapper in (own, execution.options.exception_mapper):
        for kind in type(reported).__mro__:
            if kind in mapper:
                return mapper[kind]
    if reported is not raised:
        return OutcomeCode.TASK_RETRY
    return OutcomeCode.STEP_FAILED if isinstance(raised, StepFailed) else OperationalCode.UNHANDLED_EXCEPTION


def error_of(execution: Execution, task: FrameworkTask[..., Any], raised: Exception) -> TaskError[Any]:
    """Return the error of a step whose function raised this, with the code that the task would have."""
    return _shown(raised, _code_of(raised, execution, task), execution)


def _shown(raised: BaseException, code: str, execution: Execution) -> TaskError[Any]:
    kind = type(raised)
    exception = {
        "type": clean_text(f"{kind.__module__}.{kind.__qualname__}")[:255],
        "message": _printed(raised, lambda: _message(raised, code, execution)),
        "traceback": _printed(
            raised, lambda: "".join(format_exception(kind, raised, tracebacks.from_function(raised)))
        ),
    }
    return TaskError(error_code=str(code), message=exception["message"], exception=exception)


def _failed(
    execution: Execution, task: FrameworkTask[..., Any] | None, code: str, raised: BaseException
) -> ExecutionResult:
    reported = reported_error(raised)
    if task is not None and code == OutcomeCode.TASK_TIMEOUT:  # it interrupts the task anywhere
        location = _function_name(task)
    else:
        location = tracebacks.location_of(reported)
    shown = _shown(reported, code, execution)
    exception = shown.exception or {}
    error = AttemptError(
        code=str(shown.error_code),
        message=shown.message,
        traceback=exception["traceback"],
        exception_class=exception["type"],
        location=clean_text(location)[:255],
    )
    return _error_result(execution, task, error, shown, raised)


def _returned_error(execution: Execution, task: FrameworkTask[..., Any], returned: Any) -> ExecutionResult:
    mask = mask_of_task(task)
    if not isinstance(returned, TaskError):
        # Messages are not masked, so sensitive values go into the data alone.
        seen = mask.apply_deep("result", returned)
        data = None if seen is returned else returned
        message = repr(returned) if seen is returned else mask.quote("result", returned)
        returned = TaskError(error_code=OperationalCode.TASK_EXCEPTION, message=message, data=data)
    message = clean_text(str(returned.message))
    where = "the error's data"
    try:
        data = encode(returned.data, typed=execution.is_typed, where=where)
        check_size(dumps(data), execution.options.max_payload_bytes, where)
    except Exception:  # noqa: BLE001  # keep the error even if its data can't be stored
        data = clean_text(mask.quote("data", returned.data))
    code = clean_text(str(returned.error_code))[:100] or OperationalCode.TASK_EXCEPTION.value
    stored: TaskError[Any] = TaskError(error_code=code, message=message, data=data)
    return _error_result(execution, task, AttemptError(code, message, location=_function_name(task)), stored, None)


def _function_name(task: FrameworkTask[..., Any]) -> str:
    return clean_text(f"{task.func.__module__}.{task.func.__qualname__}")[:255]


def _error_result(
    execution: Execution,
    task: FrameworkTask[..., Any] | None,
    error: AttemptError,
    shown: TaskError[Any],
    raised: BaseException | None,
) -> ExecutionResult:
    result = dumps({"err": shown.as_json()})
    backoff = task.backoff if isinstance(task, HorsiesTask) else None
    arguments: tuple[Any, ...] = (raised, TaskResult(err=shown))
    if isinstance(task, HorsiesTask) and task.backoff_takes_context():
        if execution.task_result is None:  # the attempt failed before the row was read
            backoff = None
        else:
            add_error(execution.task_result, error)
            arguments = (TaskContext(task_result=execution.task_result, run=execution),)
    delay = retry_delay(execution.claimed, error.code, raised, backoff, arguments)
    return ExecutionResult(
        execution,
        _completion(execution, result, error, delay),
        None if raised is None else reported_error(raised),
    )


def _message(raised: BaseException, code: str, execution: Execution) -> str:
    if code == OutcomeCode.TASK_TIMEOUT:
        return f"The task ran longer than its time limit of {execution.time_limit:g} seconds."
    return str(raised)


def _printed(raised: BaseException, text: Callable[[], str]) -> str:
    """Return this text about an exception, or a substitute: its own methods may raise, or a warning be an error."""
    try:
        return clean_text(text())
    except Exception:  # noqa: BLE001  # whatever they raise
        return f"<{type(raised).__name__} that can't be printed>"


def fallback(execution: Execution, error: BaseException) -> ExecutionResult:
    """Return a substitute for a result that could not be built, with nothing that could fail again."""
    claim = execution.claimed
    logger.error("task result could not be built id=%s", claim.task_id, exc_info=error)
    code = OperationalCode.UNHANDLED_EXCEPTION.value
    message = f"{type(error).__name__} while the result was being built."
    ended = _completion(execution, error_result(code, message), AttemptError(code, message))
    return ExecutionResult(execution, ended, error)


def _completion(
    execution: Execution, result: str, error: AttemptError | None = None, delay: float | None = None
) -> Completion:
    claim, has_records = execution.claimed.claim, execution.has_replay and execution.replay.has_records
    return Completion(
        execution.task_id, claim, result, error, delay, has_records=has_records, began=execution.started_at
    )
