"""Running one task's body: from a claimed row to how it ended. Whatever user code raises ends here."""

from __future__ import annotations

import inspect
import json
import logging
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asgiref.sync import async_to_sync, sync_to_async

from ..compat import FrameworkTask, TaskContext
from ..framework import resolve
from ..models.attempt import AttemptError
from ..models.claims import ClaimedTask, Ended, error_result
from ..results import OperationalCode, TaskError, TaskResult
from ..retries import RetryPolicy
from ..serializers import clean_text, decode_call, dumps, encode
from ..tasks import HorsiesTask
from . import announcing
from .outcome import Outcome

logger = logging.getLogger("horsies_django.worker")


#: Seconds that a backoff of the user's own may ask for at most: a year.
LONGEST_BACKOFF: Final = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class _Call:
    task: FrameworkTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


class _Unrunnable(Exception):
    """The row can't be turned into a call; the cause says why."""

    def __init__(self, code: OperationalCode) -> None:
        self.code = code


def run(claim: ClaimedTask, database: str) -> Outcome:
    """Run a body in this thread. Never raises."""
    started = time.perf_counter()
    call = None
    try:
        call = _prepare(claim)
        announcing.started(claim, database)
        context = [_context(claim, database)] if call.task.takes_context else []
        if inspect.iscoroutinefunction(call.task.func):
            value = async_to_sync(call.task.func)(*context, *call.args, **call.kwargs)
        else:
            value = call.task.func(*context, *call.args, **call.kwargs)
        return _returned(claim, call.task, value, started)
    except BaseException as error:  # noqa: BLE001  # sys.exit() and KeyboardInterrupt of a body end the body, not us
        return _raised(claim, call.task if call else None, error, started)


async def arun(claim: ClaimedTask, database: str) -> Outcome:
    """Run a body on this event loop. Never raises."""
    started = time.perf_counter()
    call = None
    try:
        call = _prepare(claim)
        if announcing.wants_started(claim):
            await sync_to_async(announcing.started)(claim, database)
        context = [await sync_to_async(_context)(claim, database)] if call.task.takes_context else []
        if inspect.iscoroutinefunction(call.task.func):
            value = await call.task.func(*context, *call.args, **call.kwargs)
        else:
            value = await sync_to_async(call.task.func, thread_sensitive=False)(*context, *call.args, **call.kwargs)
        return _returned(claim, call.task, value, started)
    except BaseException as error:  # noqa: BLE001  # an event loop passes SystemExit on to whoever runs it: us
        return _raised(claim, call.task if call else None, error, started)


def broken(claim: ClaimedTask, error: BaseException) -> Outcome:
    """Return the outcome of a body whose real one could not be told, with nothing that could fail again."""
    logger.error("the outcome of task id=%s could not be told", claim.task_id, exc_info=error)
    code = OperationalCode.UNHANDLED_EXCEPTION.value
    message = f"{type(error).__name__} while the outcome was being written."
    return Outcome(
        claim, Ended(claim.task_id, claim.claim, error_result(code, message), AttemptError(code, message)), 0.0, error
    )


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


def _context(claim: ClaimedTask, database: str) -> TaskContext[..., Any]:
    return TaskContext(task_result=announcing.running_result(claim, database))


def _returned(claim: ClaimedTask, task: FrameworkTask[..., Any], value: Any, started: float) -> Outcome:
    if isinstance(value, TaskResult):
        if value.is_err():
            return _returned_error(claim, task, value.err, started)
        value = value.ok
    try:
        result = dumps({"ok": encode(value, rich=claim.rich, where="the return value")})
    except Exception as error:  # noqa: BLE001  # a value's own methods may raise anything
        return _failed(claim, task, OperationalCode.WORKER_SERIALIZATION_ERROR, error, started)
    return Outcome(claim, Ended(claim.task_id, claim.claim, result), time.perf_counter() - started)


def _raised(claim: ClaimedTask, task: FrameworkTask[..., Any] | None, raised: BaseException, started: float) -> Outcome:
    if isinstance(raised, _Unrunnable):
        return _failed(claim, None, raised.code, raised.__cause__ or raised, started)
    return _failed(claim, task, _code_of(raised, task), raised, started)


def _code_of(raised: BaseException, task: FrameworkTask[..., Any] | None) -> str:
    """The code of the exception's class, or of its nearest base, in the task's mapper."""
    mapper: Mapping[Any, str] = task.exception_mapper if isinstance(task, HorsiesTask) else {}
    codes = (mapper[kind] for kind in type(raised).__mro__ if kind in mapper)
    return next(codes, OperationalCode.UNHANDLED_EXCEPTION.value)


def _failed(
    claim: ClaimedTask,
    task: FrameworkTask[..., Any] | None,
    code: str,
    raised: BaseException,
    started: float,
) -> Outcome:
    kind = type(raised)
    error = AttemptError(
        code=str(code),
        message=clean_text(_message(raised)),
        traceback=clean_text(_traceback(raised)),
        exception_class=clean_text(f"{kind.__module__}.{kind.__qualname__}")[:255],
    )
    shown = {"type": error.exception_class, "message": error.message, "traceback": error.traceback}
    return _end(
        claim, task, error, TaskError(error_code=error.code, message=error.message, exception=shown), raised, started
    )


def _returned_error(claim: ClaimedTask, task: FrameworkTask[..., Any], returned: Any, started: float) -> Outcome:
    if not isinstance(returned, TaskError):
        returned = TaskError(error_code=OperationalCode.TASK_EXCEPTION, message=repr(returned))
    message = clean_text(str(returned.message))
    try:
        data = encode(returned.data, rich=False, where="the error's data")
    except Exception:  # noqa: BLE001  # an error must not be lost for its data
        data = clean_text(repr(returned.data))
    code = clean_text(str(returned.error_code))[:100] or OperationalCode.TASK_EXCEPTION.value
    stored: TaskError[Any] = TaskError(error_code=code, message=message, data=data)
    return _end(claim, task, AttemptError(code, message), stored, None, started)


def _end(
    claim: ClaimedTask,
    task: FrameworkTask[..., Any] | None,
    error: AttemptError,
    shown: TaskError[Any],
    raised: BaseException | None,
    started: float,
) -> Outcome:
    result = dumps({"err": shown.as_json()})
    retry_in = _retry_in(claim, task, error.code, raised, shown)
    ended = Ended(claim.task_id, claim.claim, result, error, retry_in)
    return Outcome(claim, ended, time.perf_counter() - started, raised)


def _retry_in(
    claim: ClaimedTask,
    task: FrameworkTask[..., Any] | None,
    code: str,
    raised: BaseException | None,
    shown: TaskError[Any],
) -> float | None:
    """The seconds until the next attempt; None if there is none (A-133)."""
    if claim.retry_count >= claim.max_retries:
        return None
    policy = RetryPolicy.read(claim.retry_policy, claim.task_id)
    if policy is None or not policy.covers(code):
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
    if not callable(backoff):
        return float(backoff)
    try:
        seconds = backoff(raised, result)
        return None if seconds is None else min(max(0.0, float(seconds)), LONGEST_BACKOFF)
    except BaseException:  # a sys.exit() in there would end the thread, and nobody would hear of the task
        logger.exception("backoff of %s raised: no retry. id=%s", claim.task_name, claim.task_id)
        return None


def _traceback(raised: BaseException) -> str:
    """The traceback from the body on, without the frame that called it."""
    ours = raised.__traceback__
    return "".join(traceback.format_exception(type(raised), raised, (ours and ours.tb_next) or ours))


def _message(raised: BaseException) -> str:
    try:
        return str(raised)
    except Exception:  # noqa: BLE001  # an exception's own __str__ may be what is broken
        return f"<{type(raised).__name__} that can't be printed>"
