"""The columns of the task list. Durations that have not ended are measured to ``seen_at``, the database's time."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db import models
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.durations import format_duration
from ...models import Task
from ...ops.payload_view.excerpt import excerpt_of
from ..copy_button import copy_button
from ..formatting import progress_bar
from ..status_text import is_overdue, pending_state, status_badge
from ..times import relative_time

#: Characters of an id in its column.
SHORT = 13


class TaskColumns:
    """The columns of the task list."""

    @admin.display(description=_("state"))
    def shown_states(self, task: Task) -> SafeString:
        """The status, and why a pending task waits, or that it is overdue."""
        now = _now(task)
        state = gettext("overdue") if is_overdue(task, now) else pending_state(task, now)
        if not state:
            return status_badge(task)
        return format_html('{} <span class="horsies-state">{}</span>', status_badge(task), state)

    @admin.display(description=_("task"))
    def shown_name(self, task: Task) -> SafeString:
        """The task's name, with its module on a line of its own if needed."""
        module, _dot, name = task.task_name.rpartition(".")
        marked = '<span title="{}"><span class="horsies-module">{}{}</span><wbr>{}</span>'
        return format_html(marked, task.task_name, module, _dot, name)

    @admin.display(description=_("arguments"))
    def shown_call(self, task: Task) -> SafeString | str:
        """The beginning of the masked arguments; for large ones their size."""
        words = excerpt_of(task)
        return format_html('<span class="horsies-call">{}</span>', words) if words else "-"

    @admin.display(description=_("attempts"))
    def shown_attempts(self, task: Task) -> str:
        """Attempts made and allowed. ``Retry`` and operators may add attempts."""
        return f"{task.attempt}/{max(task.attempt, task.max_retries + 1)}"

    @admin.display(description=_("due"))
    def shown_due(self, task: Task) -> SafeString | str:
        """The time from which it may start."""
        return relative_time(task.enqueued_at, _now(task))

    @admin.display(description=_("wait time"))
    def shown_wait(self, task: Task) -> str:
        """The time from being due to its start, its end, or now."""
        return _span(task, task.enqueued_at, task.started_at or task.finished_at)

    @admin.display(description=_("run time"))
    def shown_run(self, task: Task) -> str:
        """The time from its start to its end, or now."""
        return _span(task, task.started_at, task.finished_at)

    @admin.display(description=_("sent at"))
    def shown_sent(self, task: Task) -> SafeString:
        """The time it was sent."""
        return relative_time(task.sent_at, _now(task))

    @admin.display(description=_("finished at"))
    def shown_ended(self, task: Task) -> SafeString | str:
        """The time it ended, with any status."""
        return "-" if task.finished_at is None else relative_time(task.finished_at, _now(task))

    @admin.display(description=_("id"))
    def shown_id(self, task: Task) -> SafeString:
        """The end of its id, because ids sent at about the same time begin alike."""
        button = copy_button(gettext("Copy the id"), text=task.pk)
        return format_html('<span title="{}">{}</span> {}', task.pk, _short(str(task.pk)), button)

    @admin.display(description=_("progress"))
    def shown_progress(self, task: Task) -> SafeString | str:
        """The progress that the task reported: a bar if the total is known, and the message."""
        return progress_bar(task.progress)

    @admin.display(description=_("worker"))
    def shown_worker(self, task: Task) -> SafeString | str:
        """The worker that holds or held it, linked to that worker's tasks."""
        worker = task.claimed_by_worker_id
        if not worker:
            return "-"
        return format_html('<a href="?{}" title="{}">{}</a>', urlencode({"worker": worker}), worker, _short(worker))

    @admin.display(description=_("workflow"))
    def shown_workflow(self, task: Task) -> SafeString | str:
        """The workflow that it is a node of, linked if the user may view it."""
        if task.workflow_id is None:
            return "-"
        short = _short(str(task.workflow_id))
        if not (address := getattr(task, "workflow_address", "")):
            return format_html('<span title="{}">{}</span>', task.workflow_id, short)
        return format_html('<a href="{}" title="{}">{}</a>', address, task.workflow_id, short)


def _now(task: models.Model) -> datetime:
    seen: Any = getattr(task, "seen_at", None)
    return seen or timezone.now()


def _span(task: Task, start: datetime | None, end: datetime | None) -> str:
    if start is None or (end is None and task.finished_at is not None):
        return "-"
    now = _now(task)
    if end is not None:
        return format_duration(end - start)
    return "-" if start > now else gettext("%s so far") % format_duration(now - start)


def _short(text: str) -> str:
    return text if len(text) <= SHORT else f"…{text[-SHORT + 1 :]}"
