"""Operator actions that keep a task's state and time: move it, change its arguments."""

from __future__ import annotations

from typing import Any, Final, Self

from django.db.models import Case, Exists, F, OuterRef, Q, When

from ..core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, task_backends
from ..core.status import TASK_TERMINAL_STATES
from ..core.workflow_status import WorkflowTaskStatus
from ..db.notifications import ANY_QUEUE, wake_after_commit
from .claim.query import RowT
from .filters import TaskFilterQuerySet

#: The start of the paths of the workflow engine's own tasks.
ENGINE_TASK_PREFIX: Final = "horsies_django.workflows.engine_tasks."


class OperatorActions(TaskFilterQuerySet[RowT]):
    """Guarded updates of tasks that have not started, and the filter of tasks that may be deleted."""

    def engine_tasks(self) -> Self:
        """The workflow engine's own tasks."""
        return self.filter(task_name__startswith=ENGINE_TASK_PREFIX)

    def move(self, *, queue_name: str | None = None, priority: int | None = None) -> int:
        """Give PENDING tasks another queue, another priority or both; return how many.

        They keep their time, and so their place among tasks of the same priority. A task whose backend lacks the queue
        is left alone. An open group that leaves its queue is closed. Raises ValueError, which names what is allowed,
        for a queue that no backend has and for a priority out of range.
        """
        if queue_name is None and priority is None:
            raise ValueError("move() needs queue_name, priority or both.")
        values: dict[str, Any] = {}
        rows = self.pending()
        if queue_name is not None:
            rows = rows.filter(backend__in=backends_with(queue_name))
            stays = When(queue_name=queue_name, then=F("group_key"))
            values |= {"queue_name": queue_name, "group_key": Case(stays)}
        if priority is not None:
            values["priority"] = checked_priority(priority)
        count = rows.update(**values)
        if count:
            wake_after_commit(self.db, queue_name or ANY_QUEUE)
        return count

    def rewrite(self, args: list[Any], kwargs: dict[str, Any], *, typed_payload: bool) -> int:
        """Give scheduled tasks other arguments, as JSON values; return how many.

        Nodes of workflows and groups are left alone, because their arguments come from other rows.
        """
        own = self.scheduled().filter(workflow_id__isnull=True, has_inputs=False)
        return own.update(args=args, kwargs=kwargs, typed_payload=typed_payload)

    def deletable(self) -> Self:
        """Ended tasks whose end no live workflow still has to process."""
        from .workflow import Workflow
        from .workflow_task import WorkflowTask

        roots = Workflow.objects.using(self.db).live().filter(pk=OuterRef("workflow_id"))
        begun = [WorkflowTaskStatus.ENQUEUED, WorkflowTaskStatus.RUNNING]
        nodes = WorkflowTask.objects.using(self.db).filter(task=OuterRef("pk"), status__in=begun)
        is_free = Q(workflow_id__isnull=True) | Q(~Exists(roots), ~Exists(nodes))
        return self.filter(is_free, status__in=sorted(TASK_TERMINAL_STATES))


def backends_with(queue: str) -> list[str]:
    """Return the aliases of the backends with this queue; a backend without a list has any. Raises ValueError."""
    if not queue or len(queue) > 100:
        raise ValueError(f"queue_name is {queue!r}; allowed: 1 to 100 characters.")
    queues_by_alias = {alias: set(task_backends[alias].queues) for alias in task_backends}
    having = [alias for alias, queues in queues_by_alias.items() if not queues or queue in queues]
    if not having:
        names = ", ".join(sorted(set().union(*queues_by_alias.values())))
        raise ValueError(f"queue_name is {queue!r}; allowed: {names}.")
    return having


def checked_priority(priority: int) -> int:
    """Return the priority. Raises ValueError, which names what is allowed, if it is not one."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError(f"priority is {priority!r}; allowed: a whole number.")
    if not TASK_MIN_PRIORITY <= priority <= TASK_MAX_PRIORITY:
        raise ValueError(f"priority is {priority}; allowed: {TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}.")
    return priority
