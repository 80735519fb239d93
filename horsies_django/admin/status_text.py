"""The words for states: the status as horsies has it, and the state of a task as asynq would call it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..core.status import TaskStatus
from ..models import Task

#: Of a task that has completed asynq says the same, so there is nothing to add.
_WORDS: Final[Mapping[str, Any]] = {
    TaskStatus.CLAIMED: _("active"),
    TaskStatus.RUNNING: _("active"),
    TaskStatus.FAILED: _("archived"),
}


def status_badge(row: Any) -> SafeString:
    """Return the status of a task, or of a workflow, by word and by class."""
    badge = '<span class="horsies-status horsies-status-{}">{}</span>'
    return format_html(badge, row.status.lower(), row.get_status_display())


def is_overdue(task: Task, now: datetime) -> bool:
    """Whether it waits though its deadline has passed, as ``Task.objects.overdue()`` has it."""
    return task.status == TaskStatus.PENDING and task.good_until is not None and task.good_until <= now


def asynq_state(task: Task, now: datetime) -> str:
    """Return what asynq's word for the state of a task adds to its status, which tells of a pending one why it waits.

    Nothing where asynq has none, or has the same. ``now`` is the database's clock.
    """
    if task.status != TaskStatus.PENDING:
        return str(_WORDS.get(task.status, ""))
    if task.enqueued_at <= now:
        return gettext("due")
    if task.next_retry_at is not None:
        return gettext("retrying")
    return gettext("aggregating") if task.group_key is not None and task.claim == 0 else gettext("scheduled")
