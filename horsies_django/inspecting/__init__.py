"""Inspecting the queue: listing tasks, showing them, and doing to one or to millions what an operator may do.

>>> from horsies_django.inspecting import tasks
>>> page = tasks().list(status="failed", queue="emails")  # doctest: +SKIP
>>> tasks().retry(page[0].id).done  # doctest: +SKIP
1
>>> tasks().matching(status="scheduled", task="shop.tasks.remind").run()  # doctest: +SKIP
Report(verb='run', done=4012, left=0, reasons={}, left_alone=(), is_dry=False)

``manage.py horsies_task`` does the same.
"""

from __future__ import annotations

from .chosen import ByIds, Chosen, Matching
from .inspector import Inspector, tasks
from .listed import ListedTask
from .queues import DeletedQueue, QueueNotEmpty, delete_queue
from .report import LeftAlone, Report
from .shown import ShownTask
from .states import State

__all__ = [
    "ByIds",
    "Chosen",
    "DeletedQueue",
    "Inspector",
    "LeftAlone",
    "ListedTask",
    "Matching",
    "QueueNotEmpty",
    "Report",
    "ShownTask",
    "State",
    "delete_queue",
    "tasks",
]
