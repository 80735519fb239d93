"""Status labels: the status of a task or workflow, and asynq's name for a task's state."""

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

#: asynq calls a completed task completed too, so it is not listed.
_WORDS: Final[Mapping[str, Any]] = {
    TaskStatus.CLAIMED: _("active"),
    TaskStatus.RUNNING: _("active"),
    TaskStatus.FAILED: _("archived"),
}


def status_badge(row: Any) -> SafeString:
    """Return the status of a task or workflow as a label with a CSS class."""
    badge = '<span class="horsies-status horsies-status-{}">{}</span>'
    return format_html(badge, row.status.lower(), row.get_status_display())


def is_overdue(task: Task, now: datetime) -> bool:
    """Return whether a pending task's deadline has passed, as ``Task.objects.overdue()`` defines it."""
    return task.status == TaskStatus.PENDING and task.good_until is not None and task.good_until <= now


def asynq_state(task: Task, now: datetime) -> str:
    """Return asynq's name for a task's state, which says why a pending task waits.

    Empty if asynq has no name for it, or the same one. ``now`` is the database's current time.
    """
    if task.status != TaskStatus.PENDING:
        return str(_WORDS.get(task.status, ""))
    if task.enqueued_at <= now:
        return gettext("due")
    if task.next_retry_at is not None:
        return gettext("retrying")
    return gettext("aggregating") if task.group_key is not None and task.claim == 0 else gettext("scheduled")
