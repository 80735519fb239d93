"""The middleware stack of a backend: each middleware wraps the next, and the last wraps the task's function."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured

from ..core.clock import parse_utc
from ..core.compat import FrameworkTask
from ..core.middleware import Run, TaskCall, load_factory, supports_mode
from ..models.claims import metadata_of
from . import result_mapping
from .execution import Execution

_stacks: Final[dict[tuple[tuple[str, ...], bool], Run]] = {}
_lock: Final = threading.Lock()


def stack_of(paths: tuple[str, ...], *, is_async: bool) -> Run:
    """Return the stack for functions or for coroutines; it is built once a process.

    Raises ImproperlyConfigured for an invalid middleware, and whatever a middleware raises while it is built.
    """
    key = (paths, is_async)
    if (stack := _stacks.get(key)) is None:
        with _lock:
            stack = _stacks[key] = _stacks.get(key) or _build(paths, is_async=is_async)
    return stack


def build_call(
    execution: Execution,
    task: FrameworkTask[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    body: Callable[[], Any],
) -> TaskCall:
    """Return the call of an execution as middleware sees it."""
    claim = execution.claimed
    return TaskCall(
        id=claim.task_id,
        task=task,
        task_name=claim.task_name,
        queue_name=claim.queue_name,
        priority=claim.priority,
        attempt=claim.attempt,
        max_attempts=claim.max_retries + 1,
        enqueued_at=parse_utc(claim.enqueued_at),
        args=tuple(args),
        kwargs=MappingProxyType(dict(kwargs)),
        metadata=MappingProxyType(metadata_of(claim)),
        workflow_id=claim.workflow_id,
        body=body,
        outcome_of=functools.partial(result_mapping.outcome_of, execution, task),
    )


def _build(paths: tuple[str, ...], *, is_async: bool) -> Run:
    run: Run = _await if is_async else _call
    mode = is_async
    for path in reversed(paths):
        factory = load_factory(path)
        wanted = mode if supports_mode(factory, is_async=mode) else not mode
        run, mode = factory(_adapted(run, mode, wanted)), wanted
        if not callable(run):
            raise ImproperlyConfigured(f"middleware {path!r} gave {run!r}; allowed: a callable.")
    return _adapted(run, mode, is_async)


def _adapted(run: Run, is_async: bool, wanted: bool) -> Run:
    """Adapt a sync callable to an async one or vice versa; sync code runs in the thread of the task's function."""
    if is_async == wanted:
        return run
    return sync_to_async(run, thread_sensitive=True) if wanted else async_to_sync(run)


def _call(call: TaskCall) -> Any:
    return call.body()


async def _await(call: TaskCall) -> Any:
    return await call.body()
