"""Runs one task: from a claimed row to its result. No exception of user code escapes."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error, connections, transaction
from django.db.models import F

from ..core.compat import FrameworkTask
from ..core.exceptions import NotRegistered, Snooze, TaskRevoked
from ..core.registry import registry
from ..core.results import OperationalCode
from ..core.serialization import decode_call
from ..core.status import TaskStatus
from ..db import postgres
from ..db.errors import is_outage
from ..enqueue import grouping
from ..enqueue.call_builder import CallBuilder
from ..enqueue.context import TaskContext
from ..enqueue.django_result import result_of
from ..enqueue.insert import insert_call
from ..enqueue.task import HorsiesTask, task
from ..models import Task, TaskOutput
from ..models.about import is_row_gone
from ..workflows import gateway, input_resolver
from . import (
    code_version,
    console_logging,
    isolation,
    middleware_stack,
    result_mapping,
    signal_dispatcher,
)
from .execution import Execution, ExecutionResult, NotStarted, RowGone, TooLate

logger = logging.getLogger("horsies_django.worker")

#: To ask anew for each task takes a microsecond.
_is_coroutine_function = lru_cache(maxsize=1_024)(inspect.iscoroutinefunction)


@dataclass(frozen=True, slots=True)
class _PreparedCall:
    task: FrameworkTask[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]


def run_task(execution: Execution) -> ExecutionResult | NotStarted:
    """Run a task's function in this thread, if it may still start. Never raises."""
    call = None
    try:
        execution.start()
        call = _prepare(execution)
        signal_dispatcher.send_started(execution.claimed, execution.database)
        if isinstance(call.task, HorsiesTask) and call.task.atomic:
            return _run_atomic(execution, call)
        return result_mapping.from_value(execution, call.task, _value(execution, call))
    except TooLate as reason:
        return _not_started(execution, reason)
    except BaseException as error:  # noqa: BLE001  # sys.exit() or KeyboardInterrupt of a task ends the task only
        return _raised(execution, call, error)
    finally:
        execution.end()


async def arun_task(execution: Execution, task: asyncio.Task[Any] | None) -> ExecutionResult | NotStarted:
    """Run a task's function in this asyncio task, if it may still start. Never raises."""
    call = None
    try:
        execution.start()
        # The arguments of a workflow node, or of grouped calls, come from the database.
        is_given = execution.claimed.workflow_id is not None or execution.claimed.has_inputs
        call = await sync_to_async(_prepare)(execution) if is_given else _prepare(execution)
        if signal_dispatcher.has_started_receivers(execution.claimed):
            await sync_to_async(signal_dispatcher.send_started)(execution.claimed, execution.database)
        context = await sync_to_async(_context)(execution, call.task) if _needs_context(call.task) else []
        function = _function(execution, call, context, is_async=True)
        if execution.claimed.about_model is not None:
            await sync_to_async(_check_row)(execution)
        execution.raise_if_too_late()
        value = await execution.cancellable(function(), task)
        return result_mapping.from_value(execution, call.task, value)
    except TooLate as reason:
        return await sync_to_async(_not_started)(execution, reason)
    except BaseException as error:  # noqa: BLE001  # an event loop passes SystemExit on to its caller
        if result_mapping.is_unknown_call(execution, error):
            return await sync_to_async(_raised)(execution, call, error)
        return result_mapping.from_exception(execution, call.task if call else None, error)
    finally:
        execution.end()


def _raised(execution: Execution, call: _PreparedCall | None, error: BaseException) -> ExecutionResult:
    """Return the result of an exception; hand a call back that only another version knows. Never raises."""
    task = call.task if call else None
    try:
        if (
            result_mapping.is_unknown_call(execution, error)
            and (result := code_version.release_unknown(execution, error)) is not None
        ):
            return result
    except Snooze as snooze:
        return result_mapping.from_exception(execution, task, snooze)
    except Exception:
        logger.exception("task not handed back id=%s: the search for a worker that knows it failed", execution.task_id)
    return result_mapping.from_exception(execution, task, error)


def _value(execution: Execution, call: _PreparedCall) -> Any:
    context = _context(execution, call.task) if _needs_context(call.task) else []
    is_async = _is_coroutine_function(call.task.func)
    function = _function(execution, call, context, is_async=is_async)
    _check_row(execution)
    execution.raise_if_too_late()  # reading the arguments may have taken long
    return async_to_sync(execution.cancellable)(function()) if is_async else execution.call(function)


def _function(
    execution: Execution, call: _PreparedCall, context: Sequence[TaskContext], *, is_async: bool
) -> Callable[[], Any]:
    """Return the task's function with its arguments, called through the project's middleware if there is any."""
    function: Callable[[], Any] = partial(call.task.func, *context, *call.args, **call.kwargs)
    if is_async and not _is_coroutine_function(call.task.func):
        function = sync_to_async(function, thread_sensitive=False)
    if not execution.options.middleware or call.task.func is join_group:  # middleware must not see our own task
        return function
    stack = middleware_stack.stack_of(execution.options.middleware, is_async=is_async)
    return partial(stack, middleware_stack.build_call(execution, call.task, call.args, call.kwargs, function))


def _value_in_transaction(execution: Execution, call: _PreparedCall) -> Any:
    """Run an atomic task's function. Raises TransactionManagementError if it does not leave the transaction alone."""
    connection = connections[execution.database]
    depth = len(connection.atomic_blocks)
    connection.execute_wrappers.insert(0, _refuse_end_of_transaction)
    try:
        value = _value(execution, call)
    finally:
        connection.execute_wrappers.remove(_refuse_end_of_transaction)
    if connection.closed_in_transaction:
        raise transaction.TransactionManagementError("The task closed the connection of its own transaction.")
    if len(connection.atomic_blocks) != depth:
        raise transaction.TransactionManagementError("The task left a transaction.atomic() block open.")
    return value


def _refuse_end_of_transaction(execute: Any, sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Run a statement of an atomic task; raise TransactionManagementError if it has ended the transaction."""
    result = execute(sql, params, many, context)
    connection = context["connection"]
    if not isolation.has_open_transaction(connection):
        connection.needs_rollback = True  # also if the function catches the error
        raise transaction.TransactionManagementError(f"The task ended its own transaction with {sql!r}.")
    return result


class _BodyFailed(Exception):
    """The function of an atomic task has failed, so its effects must be rolled back."""

    def __init__(self, result: ExecutionResult) -> None:
        self.result = result


def _run_atomic(execution: Execution, call: _PreparedCall) -> ExecutionResult:
    """Run the function, its completion and its attempt as one transaction, fenced by the claim."""
    committed: list[bool] = []
    database = execution.database
    execution.is_atomic = True
    tasks = Task.objects.using(database)
    try:
        with transaction.atomic(using=database):
            # The first callback: one that the function registers may raise and keep later ones from running.
            transaction.on_commit(partial(committed.append, True), using=database)
            if connections[database].vendor == "sqlite":
                # SQLite can't turn a reader into the writer once another connection has written: write first.
                mine = tasks.under_claims([execution.claimed], TaskStatus.RUNNING, execution.runner.worker_id)
                _require_claim(execution, mine.update(claim=F("claim")))
            value = _value_in_transaction(execution, call)
            execution.has_returned = True
            result = result_mapping.from_value(execution, call.task, value)
            if result.completion.error is not None:
                raise _BodyFailed(result)
            root = execution.claimed.workflow_id
            if root is not None:
                gateway.lock_and_wait(database, root)
            if execution.progress is not None:
                tasks.store_progress({execution.claimed: execution.progress}, execution.runner.worker_id)
            _require_claim(execution, tasks.complete([result.completion], execution.runner))
            _save_output(execution)
            if root is not None:
                gateway.advance_locked(database, [execution.task_id])
            result = replace(result, is_stored=True)
    except _BodyFailed as error:
        return error.result
    except BaseException:
        if not committed:
            raise
        logger.exception("on_commit callback raised after the task had committed id=%s", execution.task_id)
    return result


def _save_output(execution: Execution) -> None:
    """Store what an atomic body has written and logged, as a part of its transaction."""
    if (output := execution.unsaved_output) is not None:
        saved = TaskOutput.objects.using(execution.database).save_unsaved([(execution.claimed, output)])
        transaction.on_commit(partial(output.mark_saved, saved[output]), using=execution.database)


def _require_claim(execution: Execution, is_held: object) -> None:
    """Stop an execution whose task this worker no longer holds."""
    if not is_held:
        execution.request_stop(TaskRevoked)
        raise TaskRevoked(
            "The task was cancelled or recovered, or its body has changed or deleted its own row. "
            "The transaction of the body was rolled back."
        )


def _prepare(execution: Execution) -> _PreparedCall:
    claim = execution.claimed
    console_logging.log_later(
        claim,
        "task started id=%s name=%s queue=%s attempt=%d",
        execution.shown_id,
        claim.task_name,
        claim.queue_name,
        claim.attempt,
        is_last=not execution.has_next,
    )
    try:
        task = registry.find_task(claim.task_name)
    except NotRegistered as error:
        raise result_mapping.InvalidCall(OperationalCode.WORKER_RESOLUTION_ERROR) from error
    if task.takes_context or execution.options.attempt_log is not None:
        execution.open_output()
    try:
        args, kwargs = decode_call(_loads(claim.args), _loads(claim.kwargs), typed=execution.is_typed)
        # Arguments of its own win over inputs: restart() may have stored others.
        if claim.workflow_id is not None:
            kwargs = input_resolver.arguments_of_run(execution, task) | kwargs
        elif claim.has_inputs:
            gathered = grouping.arguments(execution, task)
            if not gathered:
                return _PreparedCall(join_group_task(claim.backend), [], {"call": kwargs})
            kwargs = gathered | kwargs
    except Exception as error:
        if is_outage(error):
            raise
        raise result_mapping.InvalidCall(OperationalCode.WORKER_SERIALIZATION_ERROR) from error
    return _PreparedCall(task, args, kwargs)


def _check_row(execution: Execution) -> None:
    """Raise :class:`RowGone` if the row that a task is about is gone."""
    if execution.claimed.about_model is not None and is_row_gone(execution.claimed, execution.options):
        raise RowGone


def _not_started(execution: Execution, reason: TooLate) -> NotStarted:
    """Cancel a task whose row is gone, after the transaction of an atomic one. It goes back if that fails."""
    if isinstance(reason, RowGone):
        claim, tasks = execution.claimed, Task.objects.using(execution.database)
        mine = tasks.under_claims([claim], TaskStatus.RUNNING, execution.runner.worker_id)
        row = f"{claim.about_model}:{claim.about_id}"
        try:
            mine.cancel_without_row()
        except Error:
            logger.exception("task without its row not cancelled id=%s row=%s", claim.task_id, row)
        else:
            execution.request_stop(TaskRevoked)
            logger.info("task cancelled without its row id=%s name=%s row=%s", claim.task_id, claim.task_name, row)
    return NotStarted(execution)


def _loads(text: str) -> Any:
    return [] if text == "[]" else json.loads(text)


def _needs_context(task: FrameworkTask[..., Any]) -> bool:
    return task.takes_context or (isinstance(task, HorsiesTask) and task.backoff_takes_context())


def _context(execution: Execution, task: FrameworkTask[..., Any]) -> Sequence[TaskContext]:
    """Read the row for the context of the function, of its backoff, or of both; return what the function takes of it.

    A backoff gets what was read before the body: its connection may be unusable afterwards.
    """
    row = signal_dispatcher.running_row(execution.claimed, execution.database, finds_records=task.takes_context)
    execution.make_error = partial(result_mapping.error_of, execution, task)
    execution.state = row.checkpoint
    execution.may_replay = getattr(row, "has_records", False)
    execution.task_result = result_of(row)
    execution.has_context = task.takes_context
    return [TaskContext(task_result=execution.task_result, run=execution)] if task.takes_context else []


#: The columns that a new group copies from the call that opens it.
_COPIED_COLUMNS: Final = ("backend", "queue_name", "priority", "timeout", "retention", "retention_by_state", "metadata")

#: Milliseconds to wait for a group that a sender's transaction has locked, and seconds until the next attempt.
LOCK_WAIT: Final = 100
RETRY_AFTER: Final = 0.2


def join_group_task(backend: str) -> HorsiesTask[..., Any]:
    """Return the task that joins calls on ``backend``: a project need not have a backend named default."""
    return task(takes_context=True, atomic=True, backend=backend)(join_group)


def join_group(context: TaskContext, call: dict[str, Any]) -> str:
    """Add a call that has become due to the open group of its key; return the id of the group's task.

    The join and the end of the call are one transaction, so the call joins exactly one group. Raises Snooze while
    another transaction holds the group.
    """
    execution = context.run
    task = registry.find_task(execution.claimed.task_name)
    if not isinstance(task, HorsiesTask):
        raise TypeError(
            f"{execution.claimed.task_name} is not a task of horsies_django any more, so its call can't be sent."
        )
    own = Task.objects.using(execution.database).values(*_COPIED_COLUMNS).get(pk=execution.task_id)
    try:
        with postgres.waiting_for_locks(connections[execution.database], LOCK_WAIT):
            builder = CallBuilder.of(task, execution.options)
            return str(insert_call(execution.options, builder, (), call, own=own).id)
    except Error as error:
        if not is_outage(error):
            raise
        raise Snooze(RETRY_AFTER) from error
