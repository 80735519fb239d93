"""Inspect tasks and act on them, one at a time or millions at once.

>>> from horsies_django.ops.inspector import tasks
>>> page = tasks().list(status="failed", queue="emails")  # doctest: +SKIP
>>> tasks().retry(page[0].id).done  # doctest: +SKIP
1
>>> tasks().matching(status="scheduled", task="shop.tasks.remind").run()  # doctest: +SKIP
Report(action='run', done=4012, left=0, reasons={}, skipped=(), is_dry=False)

``manage.py horsies_task`` offers the same from the shell.
"""

from __future__ import annotations

from ..task_states import State
from .delete_queue import DeletedQueue, QueueNotEmpty, delete_queue
from .inspector import Inspector, tasks
from .selection import Report, Selection, Skipped
from .task_values import TaskDetail, TaskSummary

__all__ = [
    "DeletedQueue",
    "Inspector",
    "QueueNotEmpty",
    "Report",
    "Selection",
    "Skipped",
    "State",
    "TaskDetail",
    "TaskSummary",
    "delete_queue",
    "tasks",
]
