"""The table of the latest tasks about a row, and the link to all of them."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Left
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...db.now import Now
from ...db.row_key import row_ref
from ...models import Task, TaskAttempt
from ...ops.payload_view.contents import PARTS
from ..ages import relative_time
from ..base import queue_database
from ..links import Links
from .changelist import MAX_MESSAGE, LastError
from .columns import TaskColumns, error_text

#: Maximum number of tasks in the table.
MAX_TASKS: Final = 10

_COLUMNS: Final = TaskColumns()


def tasks_table(row: Model, links: Links) -> SafeString:
    """Return the table of the latest tasks about a row. Takes one statement."""
    words, about = gettext("All tasks about this row"), str(row_ref(row))
    context = {
        "tasks": [_cells(task, links) for task in _latest(row)],
        "all_tasks": links.to_list(Task, words, about=about) if links.can_view(Task) else "",
    }
    return render_to_string("admin/horsies_django/row_tasks.html", context)


def _latest(row: Model) -> QuerySet[Any]:
    """Return the latest tasks about a row, with their errors and the database's time, without their payloads."""
    attempts = TaskAttempt.objects.filter(
        task=OuterRef("pk"), attempt=OuterRef("attempt"), error_code=OuterRef("error_code")
    )
    tasks = Task.objects.using(queue_database()).about(row).defer(*PARTS, "retry_policy", "progress")
    return tasks.annotate(
        seen_at=Now(),
        exception_class=Subquery(attempts.values("exception_class")),
        error_message=Subquery(attempts.values(message=Left("error_message", MAX_MESSAGE))),
    ).order_by("-id")[:MAX_TASKS]


def _cells(task: Any, links: Links) -> dict[str, SafeString | str]:
    task.page_links = links
    error = LastError(task.error_code or "", task.exception_class or "", task.error_message or "")
    return {
        "state": _COLUMNS.shown_state(task),
        "name": links.to(Task, task.pk, _COLUMNS.shown_name(task)),
        "error": error_text(error) if error.code else "",
        "run": _COLUMNS.shown_run(task),
        "sent": relative_time(task.sent_at, task.seen_at),
    }
