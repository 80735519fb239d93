"""The inspector's actions on tasks: the states that each takes and the QuerySet method that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import transaction

from ...core.backends import backends_on, config_of
from ...core.compat import InvalidTask
from ...core.status import TaskStatus
from ...db.now import Now
from ...enqueue.handle import TaskHandle, send_events
from ...models.claims import check_event_name
from ...models.operator_actions import ENGINE_TASK_PREFIX, backends_with, checked_priority
from ...models.transitions import TaskQuerySet
from ...reaper import prune
from ..task_states import ENDED, WAITING, State, state_of


class Candidate(NamedTuple):
    """The columns of a task and the database's time when they were read."""

    id: UUID
    status: str
    task_name: str
    backend: str
    workflow_id: UUID | None
    enqueued_at: datetime
    next_retry_at: datetime | None
    good_until: datetime | None
    waits_for: str | None
    group_key: str | None
    claim: int
    now: datetime

    @property
    def state(self) -> State | str:
        """The state of the task."""
        return state_of(self, self.now)

    @property
    def is_past_deadline(self) -> bool:
        """Whether its deadline has passed."""
        return self.good_until is not None and self.good_until <= self.now

    @property
    def is_engine_task(self) -> bool:
        """Whether it is an internal task of the workflow engine."""
        return self.task_name.startswith(ENGINE_TASK_PREFIX)


def candidates(rows: TaskQuerySet) -> Iterator[Candidate]:
    """Yield a candidate for each row, the newest first. Takes one statement."""
    columns: list[Any] = [*Candidate._fields[:-1], Now()]
    columns[0] = "pk"
    for values in rows.order_by("-pk").values_list(*columns):
        yield Candidate(*values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAction:
    """One action on tasks.

    Attributes:
        name: Its name in reports and logs.
        states: The states that it takes.
        act: Changes the rows whose state allows it and returns how many.
        objection: Returns why it can't be applied to a task in one of these states; None if it can.
        fallback_reason: The reason for a skipped task when nothing in :class:`Candidate` explains it.
        default_states: The states that "all" covers if the filter names none.
        log_fields: Additional fields of the log line.
    """

    name: str
    states: frozenset[State]
    act: Callable[[TaskQuerySet], int]
    objection: Callable[[Candidate], str | None] = lambda task: None
    fallback_reason: str = "it changed meanwhile"
    default_states: frozenset[State] = frozenset()
    log_fields: Mapping[str, Any] = field(default_factory=dict)

    def why_not(self, task: Candidate) -> str | None:
        """Return why the action can't be applied to this task; None if it can."""
        if task.state not in self.states:
            return f"it is {task.state}"
        return self.objection(task)

    @property
    def states_of_all(self) -> frozenset[State]:
        """The states that "all" covers."""
        return self.default_states or self.states


def _run_objection(task: Candidate) -> str | None:
    if task.is_engine_task:
        return "it is a step of a workflow, which waits for its time"
    return "its good_until has passed" if task.is_past_deadline else None


def _delete_objection(task: Candidate) -> str | None:
    if task.state in WAITING and task.workflow_id is not None:
        return "it is a node of a workflow: cancel it, or the workflow"
    return None


def delete_ended(tasks: TaskQuerySet) -> int:
    """Delete the ended tasks, with their attempts and heartbeats, as pruning does. Return how many.

    Skips tasks whose workflow has not processed their end yet, and rows that another transaction has locked.
    """
    with transaction.atomic(using=tasks.db):
        return prune.delete(tasks.deletable())


def delete_waiting_or_ended(tasks: TaskQuerySet) -> int:
    """Delete the ended tasks and the pending ones, which are cancelled first. Return how many.

    Skips pending tasks of workflow nodes, because their workflow would wait for them.
    """
    with transaction.atomic(using=tasks.db):
        waiting = tasks.filter(status=TaskStatus.PENDING, workflow_id__isnull=True)
        keys = list(waiting.lock().values_list("pk", flat=True))
        cancelled = tasks.all_rows().filter(pk__in=keys)
        if keys and cancelled.cancel():
            return prune.delete(cancelled.deletable()) + delete_ended(tasks)
        return delete_ended(tasks)


def send_event(tasks: TaskQuerySet, name: str, payload: Any) -> int:
    """Send an event to these tasks, but for those whose backend is not in the settings. Return how many got it."""
    rows = tasks.filter(backend__in=backends_on(tasks.db)).values_list("pk", "backend")
    return send_events({TaskHandle[Any](key, backend=backend): payload for key, backend in rows}, name)


def event_action(name: str, payload: Any) -> TaskAction:
    """Return the action that sends an event to tasks that have not ended; "all" are those that wait for one.

    Raises ValueError for a bad name.
    """
    check_event_name(name)

    def objection(task: Candidate) -> str | None:
        try:
            config_of(task.backend)
        except InvalidTask as error:
            return str(error)
        return None

    return TaskAction(
        name="send_event",
        states=CANCEL_RUNNING.states,
        act=partial(send_event, name=name, payload=payload),
        objection=objection,
        fallback_reason="it has 1,000 events that its body has not read",
        default_states=frozenset({State.AWAITING}),
        log_fields={"event": name},
    )


RUN: Final = TaskAction(
    name="run",
    states=frozenset({State.SCHEDULED, State.AGGREGATING, State.RETRYING}),
    act=TaskQuerySet.run_now,
    objection=_run_objection,
)

CANCEL: Final = TaskAction(name="cancel", states=WAITING | {State.CLAIMED}, act=TaskQuerySet.cancel)

CANCEL_RUNNING: Final = TaskAction(
    name="cancel",
    states=CANCEL.states | {State.RUNNING},
    act=partial(TaskQuerySet.cancel, include_running=True),
    log_fields={"running": True},
)

RETRY: Final = TaskAction(
    name="retry",
    states=ENDED - {State.COMPLETED},
    act=TaskQuerySet.retry,
    fallback_reason="another live task has its unique key, or its workflow does not allow it",
)

DELETE: Final = TaskAction(
    name="delete",
    states=ENDED | WAITING,
    act=delete_waiting_or_ended,
    objection=_delete_objection,
    fallback_reason="its workflow has not processed its end yet, or another transaction has locked its row",
    default_states=ENDED,
)


def move_action(queue: str | None, priority: int | None) -> TaskAction:
    """Return the action that changes the queue, the priority or both of pending tasks.

    Raises ValueError that names the allowed values for an unknown queue or a priority out of range.
    """
    if queue is None and priority is None:
        raise ValueError("move() needs queue, priority or both.")
    backends = None if queue is None else set(backends_with(queue))
    if priority is not None:
        checked_priority(priority)

    def objection(task: Candidate) -> str | None:
        if backends is not None and task.backend not in backends:
            return f"its backend {task.backend!r} has no queue {queue!r}"
        return None

    act = partial(TaskQuerySet.move, queue_name=queue, priority=priority)
    log_fields = {"to_queue": queue, "priority": priority}
    return TaskAction(name="move", states=WAITING, act=act, objection=objection, log_fields=log_fields)
