"""Finds the calls that were sent and have not started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.backends import all_backends, config_of, reads_typed
from ..core.compat import FrameworkTask
from ..core.exceptions import NotRegistered
from ..core.parameters import signature_of
from ..core.registry import name_of, registry
from ..core.serialization import decode_call
from ..core.status import TaskStatus
from ..enqueue.handle import TaskHandle
from ..models import Task
from ..models.operator_actions import ENGINE_TASK_PREFIX
from .sends import EnqueuedCall, captured_calls


def all_enqueued() -> list[EnqueuedCall]:
    """Return the calls that were sent and have not started, in the order of the sends.

    Inside :func:`~.captured` those are the captured calls, and no query is made.
    """
    captured = captured_calls()
    if captured is not None:
        return list(captured)
    databases = dict.fromkeys(backend.config.database for backend in all_backends())
    return [_call(row) for database in databases for row in _waiting(database)]


def assert_enqueued(
    task: FrameworkTask[..., Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[EnqueuedCall]:
    """Raise AssertionError unless a waiting call matches, or exactly ``count`` calls; return those that match.

    What is None matches any call. If ``args`` or ``kwargs`` is given, all arguments of the call must be equal to them,
    however the call passed them: ``add.send(1, b=2)`` matches ``kwargs={"a": 1, "b": 2}``.
    """
    waiting = all_enqueued()
    calls = [call for call in waiting if _matches(call, task, args, kwargs, queue)]
    if len(calls) == count or (count is None and calls):
        return calls
    wanted = _wanted(task, args, kwargs, queue)
    number = "No call" if not calls else f"{len(calls)} calls" if len(calls) > 1 else "1 call"
    expected = "" if count is None else f" instead of {count}"
    raise AssertionError(f"{number}{expected} of {wanted} was enqueued. {_listed(waiting)}")


def refute_enqueued(
    task: FrameworkTask[..., Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
) -> None:
    """Raise AssertionError if a waiting call matches. See :func:`assert_enqueued`."""
    waiting = all_enqueued()
    if any(_matches(call, task, args, kwargs, queue) for call in waiting):
        raise AssertionError(f"{_wanted(task, args, kwargs, queue)} was enqueued. {_listed(waiting)}")


def assert_waiting(waiting: TaskHandle[Any] | FrameworkTask[..., Any], waits_for: str) -> None:
    """Raise AssertionError unless a task waits for ``event:<name>``, ``workflow:<id>``, ``sleep`` or ``step:<name>``.

    ``waiting`` is a handle, or a task, of which one call must wait for it.
    """
    rows = Task.objects.using(config_of(waiting.backend).database).awaiting()
    if isinstance(waiting, TaskHandle):
        shown, rows = f"Task {waiting.id}", rows.filter(pk=waiting.id)
    else:
        shown, rows = name_of(waiting), rows.filter(task_name=name_of(waiting))
    waits = set(rows.values_list("waits_for", flat=True))
    if waits_for not in waits:
        others = ", ".join(sorted(map(str, waits))) or "nothing"
        raise AssertionError(f"{shown} does not wait for {waits_for}; it waits for {others}.")


def _waiting(database: str) -> Any:
    rows = Task.objects.using(database).filter(status__in=[TaskStatus.PENDING, TaskStatus.CLAIMED])
    return rows.exclude(task_name__startswith=ENGINE_TASK_PREFIX).order_by("sent_at", "pk")


def _call(row: Task) -> EnqueuedCall:
    args, kwargs = decode_call(row.args, row.kwargs, typed=reads_typed(row.backend, row.typed_payload))
    handle: TaskHandle[Any] = TaskHandle(row.pk, backend=row.backend)
    return EnqueuedCall(row.task_name, args, kwargs, row.queue_name, row.priority, row.run_after, handle)


def _matches(
    call: EnqueuedCall,
    task: FrameworkTask[..., Any] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    queue: str | None,
) -> bool:
    if task is not None and call.task_name != name_of(task):
        return False
    if queue is not None and call.queue_name != queue:
        return False
    if args is None and kwargs is None:
        return True
    wanted = _by_name(call.task_name, args or (), kwargs or {})
    return bool(_by_name(call.task_name, call.args, call.kwargs) == wanted)


def _by_name(task_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return arguments by the names of the parameters, or as they are if they don't fit the task."""
    try:
        task = registry.find_task(task_name)
        context = (None,) if task.takes_context else ()
        return signature_of(task.func).bind_partial(*context, *args, **kwargs).arguments
    except (NotRegistered, TypeError):
        return list(args), dict(kwargs)


def _wanted(
    task: FrameworkTask[..., Any] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    queue: str | None,
) -> str:
    arguments = [*map(repr, args or ()), *(f"{name}={value!r}" for name, value in (kwargs or {}).items())]
    shown = "…" if args is None and kwargs is None else ", ".join(arguments)
    name = "any task" if task is None else name_of(task)
    return f"{name}({shown})" + ("" if queue is None else f" in queue {queue}")


def _listed(waiting: Sequence[EnqueuedCall]) -> str:
    if not waiting:
        return "Nothing waits."
    lines = "".join(f"\n  {call}" for call in waiting[:20])
    more = f"\n  and {len(waiting) - 20} more" if len(waiting) > 20 else ""
    return f"What waits:{lines}{more}"
