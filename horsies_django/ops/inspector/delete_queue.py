"""Delete a queue: its tasks and its row."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ...core.operations import log_operation
from ...models import Queue, Task
from ..keyset.scan import KeysetScan
from ..task_states import ENDED, HELD, WAITING, State
from .selection import Selection, TaskFilters

#: The states of tasks that have not ended.
_LIVE: Final = WAITING | HELD


class QueueNotEmpty(ValueError):
    """The queue has tasks that must not be deleted."""


@dataclass(frozen=True, slots=True)
class DeletedQueue:
    """What was deleted: the number of tasks, and whether the queue had a row with limits or a pause."""

    name: str
    tasks: int
    had_row: bool

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return asdict(self)


def delete_queue(name: str, database: str, *, force: bool = False) -> DeletedQueue:
    """Delete a queue's ended tasks and its row; with ``force`` its waiting tasks as well.

    Raises QueueNotEmpty before deleting anything if a worker holds tasks of the queue, or if tasks wait and ``force``
    is false. Raises it afterwards, and keeps the row, if some tasks could not be deleted.
    """
    _refuse(name, database, HELD if force else _LIVE)
    rows = Task.objects.using(database)
    states = ENDED | WAITING if force else ENDED
    report = Selection(rows, TaskFilters.of(status=states, queue=name)).delete()
    if report.left:
        reasons = "; ".join(f"{count}: {why}" for why, count in report.reasons.items())
        raise QueueNotEmpty(
            f"The queue {name!r} stays: {report.done} tasks are deleted, {report.left} are not ({reasons})."
        )
    _refuse(name, database, _LIVE, f" Of those that there were, {report.done} are deleted.")
    row = Queue.objects.using(database).filter(name=name).first()
    if row is not None:
        row.delete()
    deleted = DeletedQueue(name, report.done, row is not None)
    log_operation("queue.delete", report.done, queue=name, force=force or None)
    return deleted


def _refuse(name: str, database: str, states: frozenset[State], more: str = "") -> None:
    """Raise QueueNotEmpty if the queue has a task in one of these states."""
    criteria = TaskFilters.of(status=states, queue=name).criteria
    tasks = KeysetScan(criteria.filter(Task.objects.using(database)), criteria).first(1)
    if not tasks:
        return
    (task,) = tasks
    is_held = task.claimed
    how = "Pause it and cancel them, or wait until they end" if is_held else "Cancel or move them, or use force"
    live = "that a worker holds" if is_held else "that wait"
    raise QueueNotEmpty(f"The queue {name!r} has tasks {live}, such as {task.pk}: it is not deleted. {how}.{more}")
