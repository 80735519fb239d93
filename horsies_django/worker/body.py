"""Running one task's body: from a claimed row to how it ended. Whatever user code raises ends here."""

from __future__ import annotations

import inspect
import json
import logging
import traceback
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Final

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.db.models import F

from ..compat import FrameworkTask
from ..context import TaskContext
from ..exceptions import LONGEST_DELAY, Discard, Retry, Snooze, TaskRevoked, TaskTimeLimit
from ..framework import resolve, result_of
from ..hints import return_problem
from ..models import Task
from ..models.attempt import AttemptError
from ..models.claims import ClaimedTask, Ended, error_result
from ..results import ContractCode, OperationalCode, OutcomeCode, TaskError, TaskResult
from ..retries import ANY_CODE, RetryPolicy
from ..serializers import check_size, clean_text, decode_call, dumps, encode
from ..states import TaskStatus
from ..tasks import HorsiesTask
from . import announcing
from .outcome import Outcome
from .run import Run

logger = logging.getLogger("horsies_django.worker")


#: Retries that ``raise Retry()`` gets in a task without a policy.
RETRIES_ON_DEMAND: Final = 2


@dataclass(frozen=True, slots=True)
class _Call:
    task: FrameworkTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


class _Unrunnable(Exception):
    """The row can't be turned into a call; the cause says why."""

    def __init__(self, code: OperationalCode) -> None:
        self.code = code


def run(run: Run) -> Outcome:
    """Run a body in this thread. Never raises."""
    call = None
    try:
        call = _prepare(run.claim)
        announcing.started(run.claim, run.database)
        if isinstance(call.task, HorsiesTask) and call.task.atomic:
            return _run_atomic(run, call)
        return _returned(run, call.task, _value(run, call))
    except BaseException as error:  # noqa: BLE001  # sys.exit() and KeyboardInterrupt of a body end the body, not us
        return _raised(run, call.task if call else None, error)


async def arun(run: Run) -> Outcome:
    """Run a body on this event loop. Never raises."""
    call = None
    try:
        call = _prepare(run.claim)
        if announcing.wants_started(run.claim):
            await sync_to_async(announcing.started)(run.claim, run.database)
        context = [await sync_to_async(_context)(run)] if call.task.takes_context else []
        if inspect.iscoroutinefunction(call.task.func):
            body = call.task.func(*context, *call.args, **call.kwargs)
        else:
            body = sync_to_async(call.task.func, thread_sensitive=False)(*context, *call.args, **call.kwargs)
        return _returned(run, call.task, await run.wait_for(body))
    except BaseException as error:  # noqa: BLE001  # an event loop passes SystemExit on to whoever runs it: us
        return _raised(run, call.task if call else None, error)


def _value(run: Run, call: _Call) -> Any:
    context = [_context(run)] if call.task.takes_context else []
    if inspect.iscoroutinefunction(call.task.func):
        return async_to_sync(run.wait_for)(call.task.func(*context, *call.args, **call.kwargs))
    with run.window():
        return call.task.func(*context, *call.args, **call.kwargs)


class _RolledBack(Exception):
    """The body of an atomic task came to an error, so its effects must not stay."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def _run_atomic(run: Run, call: _Call) -> Outcome:
    """Run a body, its COMPLETED mark and its attempt as one transaction, behind the fence of the claim."""
    committed: list[Outcome] = []
    database = run.database
    tasks = Task.objects.using(database)
    try:
        with transaction.atomic(using=database):
            if connections[database].vendor == "sqlite":
                # Who has read can't become the writer once somebody else has written: be it from the start.
                tasks.held([run.claim], TaskStatus.RUNNING).update(claim=F("claim"))
            outcome = _returned(run, call.task, _value(run, call))
            if outcome.ended.error is not None:
                raise _RolledBack(outcome)
            if run.progress is not None:
                tasks.note_progress({run.claim: run.progress})
            if not tasks.complete([outcome.ended], run.runner):
                run.tell(TaskRevoked)
                run.check()
            outcome = replace(outcome, is_stored=True)
            transaction.on_commit(partial(committed.append, outcome), using=database)
    except _RolledBack as error:
        return error.outcome
    except BaseException:
        if not committed:
            raise
        logger.exception("a callback after the commit of task id=%s raised; the task is done", run.task_id)
    return outcome


def broken(run: Run, error: BaseException) -> Outcome:
    """Return the outcome of a body whose real one could not be told, with nothing that could fail again."""
    claim = run.claim
    logger.error("the outcome of task id=%s could not be told", claim.task_id, exc_info=error)
    code = OperationalCode.UNHANDLED_EXCEPTION.value
    message = f"{type(error).__name__} while the outcome was being written."
    ended = Ended(claim.task_id, claim.claim, error_result(code, message), AttemptError(code, message))
    return Outcome(run, ended, error)


def _prepare(claim: ClaimedTask) -> _Call:
    logger.info(
        "task started id=%s name=%s queue=%s attempt=%d",
        claim.task_id,
        claim.task_name,
        claim.queue_name,
        claim.attempt,
    )
    try:
        task = resolve(claim.task_name)
    except Exception as error:
        raise _Unrunnable(OperationalCode.WORKER_RESOLUTION_ERROR) from error
    try:
        args, kwargs = decode_call(json.loads(claim.args), json.loads(claim.kwargs), rich=claim.rich)
    except Exception as error:
        raise _Unrunnable(OperationalCode.WORKER_SERIALIZATION_ERROR) from error
    return _Call(task, args, kwargs)


def _context(run: Run) -> TaskContext:
    row = announcing.running_row(run.claim, run.database)
    run.state = row.checkpoint
    run.has_context = True
    return TaskContext(task_result=result_of(row), run=run)


def _returned(run: Run, task: FrameworkTask[..., Any], value: Any) -> Outcome:
    if isinstance(value, TaskResult):
        if value.is_err():
            return _returned_error(run, task, value.err)
        value = value.ok
    if problem := return_problem(task.func, value):
        return _failed(run, task, ContractCode.RETURN_TYPE_MISMATCH, TypeError(problem))
    try:
        result = dumps({"ok": encode(value, rich=run.claim.rich, where="the return value")})
        check_size(result, run.options.max_payload_bytes, "the return value")
    except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
        return _failed(run, task, OperationalCode.WORKER_SERIALIZATION_ERROR, error)
    return Outcome(run, Ended(run.task_id, run.claim.claim, result))


def _raised(run: Run, task: FrameworkTask[..., Any] | None, raised: BaseException) -> Outcome:
    if run.told is TaskTimeLimit:
        return _failed(run, task, OutcomeCode.TASK_TIMEOUT, raised)
    if isinstance(raised, _Unrunnable):
        return _failed(run, None, raised.code, raised.__cause__ or raised)
    if isinstance(raised, Snooze):
        return Outcome(run, Ended(run.task_id, run.claim.claim, "null", again_in=raised.seconds))
    if isinstance(raised, Discard):
        return _failed(run, task, OutcomeCode.TASK_DISCARDED, raised)
    if isinstance(raised, Retry):
        return _failed(run, task, OutcomeCode.TASK_RETRY, raised)
    if isinstance(raised, TypeError) and _is_ours(raised):
        return _failed(run, task, ContractCode.ARGUMENT_TYPE_MISMATCH, raised)
    return _failed(run, task, _code_of(raised, run, task), raised)


def _is_ours(raised: BaseException) -> bool:
    """Whether the call itself failed, before the body had begun: its arguments don't fit the function any more."""
    return _body_of(raised) is None


def _code_of(raised: BaseException, run: Run, task: FrameworkTask[..., Any] | None) -> str:
    """The code of the exception's class, or of its nearest base: in the task's mapper, else in the backend's."""
    own = task.exception_mapper if isinstance(task, HorsiesTask) else {}
    for mapper in (own, run.options.exception_mapper):
        for kind in type(raised).__mro__:
            if kind in mapper:
                return mapper[kind]
    return OperationalCode.UNHANDLED_EXCEPTION.value


def _failed(run: Run, task: FrameworkTask[..., Any] | None, code: str, raised: BaseException) -> Outcome:
    kind = type(raised)
    error = AttemptError(
        code=str(code),
        message=clean_text(_message(raised, code, run)),
        traceback=clean_text(_traceback(raised)),
        exception_class=clean_text(f"{kind.__module__}.{kind.__qualname__}")[:255],
    )
    shown = {"type": error.exception_class, "message": error.message, "traceback": error.traceback}
    return _end(run, task, error, TaskError(error_code=error.code, message=error.message, exception=shown), raised)


def _returned_error(run: Run, task: FrameworkTask[..., Any], returned: Any) -> Outcome:
    if not isinstance(returned, TaskError):
        returned = TaskError(error_code=OperationalCode.TASK_EXCEPTION, message=repr(returned))
    message = clean_text(str(returned.message))
    where = "the error's data"
    try:
        data = encode(returned.data, rich=run.claim.rich, where=where)
        check_size(dumps(data), run.options.max_payload_bytes, where)
    except Exception:  # noqa: BLE001  # an error must not be lost for its data
        data = clean_text(repr(returned.data))
    code = clean_text(str(returned.error_code))[:100] or OperationalCode.TASK_EXCEPTION.value
    stored: TaskError[Any] = TaskError(error_code=code, message=message, data=data)
    return _end(run, task, AttemptError(code, message), stored, None)


def _end(
    run: Run,
    task: FrameworkTask[..., Any] | None,
    error: AttemptError,
    shown: TaskError[Any],
    raised: BaseException | None,
) -> Outcome:
    result = dumps({"err": shown.as_json()})
    again_in = _again_in(run.claim, task, error.code, raised, shown)
    return Outcome(run, Ended(run.task_id, run.claim.claim, result, error, again_in), raised)


def _again_in(
    claim: ClaimedTask,
    task: FrameworkTask[..., Any] | None,
    code: str,
    raised: BaseException | None,
    shown: TaskError[Any],
) -> float | None:
    """The seconds until the next attempt; None if there is none (A-133)."""
    is_asked_for = isinstance(raised, Retry)
    if isinstance(raised, Discard) or claim.retry_count >= (claim.max_retries or RETRIES_ON_DEMAND * is_asked_for):
        return None
    policy = RetryPolicy.read(claim.retry_policy, claim.task_id)
    if isinstance(raised, Retry):
        if raised.after is not None:
            return raised.after
        policy = policy or RetryPolicy.exponential(auto_retry_for=[ANY_CODE])
    elif policy is None or not policy.covers(code):
        return None
    if (
        isinstance(task, HorsiesTask)
        and not isinstance(task.backoff, RetryPolicy | None)
        and policy == task.stored_policy()
    ):
        return _own_backoff(task.backoff, raised, TaskResult(err=shown), claim)
    return policy.delay(claim.retry_count + 1)


def _own_backoff(
    backoff: Any, raised: BaseException | None, result: TaskResult[Any, Any], claim: ClaimedTask
) -> float | None:
    try:
        seconds = backoff(raised, result) if callable(backoff) else backoff
        return None if seconds is None else min(max(0.0, float(seconds)), LONGEST_DELAY.total_seconds())
    except BaseException:  # a sys.exit() in there would end the thread, and nobody would hear of the task
        logger.exception("backoff of %s raised: no retry. id=%s", claim.task_name, claim.task_id)
        return None


def _traceback(raised: BaseException) -> str:
    """The traceback from the body on, without the frames that lead to it."""
    return "".join(traceback.format_exception(type(raised), raised, _body_of(raised) or raised.__traceback__))


def _body_of(raised: BaseException) -> TracebackType | None:
    """The traceback without our own frames that lead to the body; None if it never got there."""
    trace = raised.__traceback__
    while trace and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


def _message(raised: BaseException, code: str, run: Run) -> str:
    if code == OutcomeCode.TASK_TIMEOUT:
        return f"The body ran longer than its time limit of {run.time_limit:g} seconds."
    try:
        return str(raised)
    except Exception:  # noqa: BLE001  # an exception's own __str__ may be what is broken
        return f"<{type(raised).__name__} that can't be printed>"
