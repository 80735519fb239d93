"""Sends that are kept in a list, and sends that run at once in place.

Both put other backends in the place of the project's own for the length of a block, in this thread and in what it
awaits, as Django's ``override_settings(TASKS=…)`` would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from ..core.backends import all_backends
from ..core.compat import FrameworkTask, task_backends
from ..core.current_task import dry_run
from ..core.registry import name_of
from ..enqueue.backend import HorsiesBackend, Inserted
from ..enqueue.handle import TaskHandle
from ..enqueue.many_calls import checked
from ..models import Task
from ..worker.config import WorkerConfig
from ..worker.inline import InlineWorker


@dataclass(frozen=True, slots=True)
class EnqueuedCall:
    """A call that was sent and has not started. ``run_after`` is None unless it was scheduled.

    If the call was captured, ``run_after`` is as the sender gave it, and ``handle`` is that of a task that does not
    exist.
    """

    task_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue_name: str
    priority: int
    run_after: datetime | timedelta | None
    handle: TaskHandle[Any]

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        due = "" if self.run_after is None else f", due {self.run_after}"
        return f"{self.task_name}({', '.join(arguments)}) in queue {self.queue_name}{due}"


_captured: Final[ContextVar[list[EnqueuedCall] | None]] = ContextVar("horsies_captured", default=None)


def captured_calls() -> list[EnqueuedCall] | None:
    """Return the calls of the innermost :func:`captured` block; None outside."""
    return _captured.get()


@contextmanager
def captured() -> Iterator[list[EnqueuedCall]]:
    """Keep the sends of the block in the list that it yields. Nothing is stored, and no query is made.

    Calls are validated as usual. A workflow or a batch that is started is validated too and is not in the list. The
    assertions look at the list.
    """
    calls: list[EnqueuedCall] = []
    token = _captured.set(calls)
    try:
        with _replaced_by(_CapturingBackend), dry_run():
            yield calls
    finally:
        _captured.reset(token)


@contextmanager
def immediate() -> Iterator[None]:
    """Run each task as soon as the block sends it, even if it is due later, and store its result.

    A failure is stored too, and is not raised. The tasks of workflows and batches run after the next send, and at the
    end of the block.
    """
    with _replaced_by(_ImmediateBackend):
        yield
    for backend in all_backends():
        _run_workflows(backend.alias)


class _CapturingBackend(HorsiesBackend):
    """Keeps calls in the current list."""

    def _insert(self, task: FrameworkTask[..., Any], args: Any, kwargs: Any, **options: Any) -> Inserted:
        inserted = super()._insert(task, args, kwargs, **options)
        self._capture(task, args, kwargs, inserted[0].id)
        return inserted

    def send_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> Sequence[TaskHandle[Any]]:
        copied = list(map(dict, checked(calls)))
        handles = super().send_many(task, copied)
        for kwargs, handle in zip(copied, handles, strict=True):
            self._capture(task, (), kwargs, handle.id)
        return handles

    def _capture(self, task: FrameworkTask[..., Any], args: Any, kwargs: Any, id: UUID) -> None:
        calls = captured_calls()
        assert calls is not None
        options = (task.queue_name, task.priority, task.run_after, TaskHandle[Any](id, backend=self.alias))
        calls.append(EnqueuedCall(name_of(task), list(args), dict(kwargs), *options))


class _ImmediateBackend(HorsiesBackend):
    """Runs each task that it has stored."""

    def _insert(self, task: FrameworkTask[..., Any], args: Any, kwargs: Any, **options: Any) -> Inserted:
        sent, result = super()._insert(task, args, kwargs, **options)
        self._run([sent.id])
        return sent, None if result is None else self.get_result(result.id)

    def send_many(self, task: Any, calls: Iterable[Mapping[str, Any]]) -> Sequence[TaskHandle[Any]]:
        handles = super().send_many(task, calls)
        self._run(handle.id for handle in handles)
        return handles

    def _run(self, ids: Iterable[UUID]) -> None:
        with InlineWorker.open(WorkerConfig.of(self.alias)) as worker:
            for key in ids:
                worker.run(key)
        _run_workflows(self.alias)


def _run_workflows(alias: str) -> None:
    """Run the tasks of workflows that are due, until none is."""
    config = WorkerConfig.of(alias)
    nodes = Task.objects.using(config.database).filter(workflow_id__isnull=False)
    while keys := list(nodes.due().values_list("pk", flat=True)):
        with InlineWorker.open(config) as worker:
            for key in keys:
                worker.run(key)


@contextmanager
def _replaced_by(kind: type[HorsiesBackend]) -> Iterator[None]:
    """Put a backend of this kind in the place of each HorsiesBackend, with its settings and its class's own methods."""
    backends = all_backends()
    for backend in backends:
        # Blocks may be nested: the class of the project comes after those of this module.
        own = next(base for base in type(backend).__mro__ if base.__module__ != __name__)
        replacement = type(kind.__name__, (kind, own), {"__module__": __name__})
        task_backends[backend.alias] = replacement(backend.alias, settings.TASKS[backend.alias])
    try:
        yield
    finally:
        for backend in backends:
            task_backends[backend.alias] = backend
