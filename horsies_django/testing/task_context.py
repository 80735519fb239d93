"""A context to call a task's body with, without a worker and without a query."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils import timezone

from ..core import headers
from ..core.backends import config_of
from ..core.compat import FrameworkTask
from ..core.exceptions import TaskRevoked
from ..core.ids import uuid7
from ..core.serialization import decode, encode
from ..core.status import StepKind, StepStatus, TaskStatus
from ..enqueue.context import TaskContext
from ..enqueue.django_result import result_of
from ..enqueue.handle import Progress
from ..enqueue.task import HorsiesTask
from ..models import Task
from ..models.claims import StepRecord
from ..steps.task_run import LOCAL_WORKER, LocalRun, local_claim


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingContext(TaskContext):  # type: ignore[misc]  # the stubs forget that the framework's is frozen
    """A context that records what the body reports and saves, and stores nothing.

    ``reports`` are the reports of ``progress()``, ``saved`` the values given to ``save()`` and
    ``written`` the chunks given to ``write()``, as they would be read back.
    """

    reports: list[Progress] = field(default_factory=list)
    saved: list[Any] = field(default_factory=list)
    written: list[Any] = field(default_factory=list)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Record the report. Raises as in a worker."""
        TaskContext.progress(self, done, total, message)
        self.reports.append(Progress(**json.loads(self.run.progress or "{}")))

    def save(self, state: Any) -> None:
        """Record the state, which ``context.state`` returns from now on. Raises as in a worker."""
        TaskContext.save(self, state)
        self.saved.append(decode(self.run.state, typed=self.run.is_typed))

    def write(self, chunk: Any) -> None:
        """Record the chunk. Raises as in a worker."""
        TaskContext.write(self, chunk)
        if not self.run.is_replaying:
            self.written.append(encode(chunk, typed=False, where="the chunk of write()"))

    def cancel(self) -> None:
        """Ask the body to stop: ``is_cancelled`` is True, and its next checkpoint raises."""
        self.run.request_stop(TaskRevoked)


def task_context(
    task: FrameworkTask[..., Any],
    *,
    attempt: int = 1,
    max_attempts: int | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    scheduled_for: datetime | None = None,
    state: Any = None,
    is_cancelled: bool = False,
    steps: Mapping[str, Any] | None = None,
    events: Mapping[str, Sequence[Any]] | None = None,
) -> RecordingContext:
    """Return a context for a call of the task's function: ``import_users.func(task_context(import_users), path)``.

    ``attempt`` is the number of the attempt, from 1 on; ``max_attempts`` is by default the task's own. ``args`` and
    ``kwargs`` are those of ``context.task_result``, ``state`` is what an earlier attempt saved. Makes no query.

    ``steps`` are the kept values of steps by name, in the order of the body; ``events`` has the payloads of events by
    name. A wait raises :class:`~horsies_django.exceptions.TaskSuspended` unless what it waits for is there.

    Raises ValueError for an attempt out of range, InvalidTask for a task of another backend.
    """
    options = config_of(task.backend)
    attempts = max_attempts or max(attempt, _max_attempts(task))
    if not 1 <= attempt <= attempts:
        raise ValueError(f"attempt is {attempt!r}; allowed: 1 to max_attempts, which is {attempts}.")
    is_typed = options.serializer == "rich"
    own = (task.metadata if isinstance(task, HorsiesTask) else None) or {}
    stored_metadata = {**own, **(metadata or {}), **headers.of_slot(scheduled_for)}
    stored_args = encode(list(args), typed=is_typed, where="args")
    stored_kwargs = encode(dict(kwargs or {}), typed=is_typed, where="kwargs")
    claim = local_claim(
        task,
        uuid7(),
        stored_args,
        stored_kwargs,
        stored_metadata,
        attempt=attempt,
        max_attempts=attempts,
        is_typed=is_typed,
    )
    row = Task(
        id=claim.task_id,
        task_name=claim.task_name,
        queue_name=claim.queue_name,
        backend=claim.backend,
        priority=claim.priority,
        args=stored_args,
        kwargs=stored_kwargs,
        typed_payload=is_typed,
        metadata=stored_metadata or None,
        status=TaskStatus.RUNNING,
        sent_at=timezone.now(),
        started_at=timezone.now(),
    )
    result = result_of(row, task=task)
    result.worker_ids.extend([LOCAL_WORKER.worker_id] * attempt)  # by which the framework counts attempts
    run = LocalRun(claim, options, is_typed=is_typed, may_replay=bool(steps))
    if state is not None:
        run.state = encode(state, typed=is_typed, where="state")
    for position, (name, value) in enumerate((steps or {}).items(), 1):
        run.keep(StepRecord(name, 1, StepKind.STEP, StepStatus.COMPLETED, position=position), value)
    for name, payloads in (events or {}).items():
        for number, payload in enumerate(payloads, 1):
            run.keep(StepRecord(f"event:{name}", number, StepKind.EVENT, StepStatus.UNREAD), payload)
    context = RecordingContext(task_result=result, run=run)
    if is_cancelled:
        context.cancel()
    return context


def _max_attempts(task: FrameworkTask[..., Any]) -> int:
    policy = task.stored_policy(config_of(task.backend).defaults) if isinstance(task, HorsiesTask) else None
    return policy.max_retries + 1 if policy else 1
