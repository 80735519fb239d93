"""Status labels: the status of a task or workflow, and why a pending task waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ..core.status import TaskStatus
from ..models import Task


def status_badge(row: Any) -> SafeString:
    """Return the status of a task or workflow as a label with a CSS class."""
    badge = '<span class="horsies-status horsies-status-{}">{}</span>'
    return format_html(badge, row.status.lower(), row.get_status_display())


def is_overdue(task: Task, now: datetime) -> bool:
    """Return whether a pending task's deadline has passed, as ``Task.objects.overdue()`` defines it."""
    return task.status == TaskStatus.PENDING and task.good_until is not None and task.good_until <= now


def pending_state(task: Task, now: datetime) -> str:
    """Return why a pending task waits; empty for other tasks. ``now`` is the database's current time."""
    if task.status != TaskStatus.PENDING:
        return ""
    if task.enqueued_at <= now:
        return gettext("due")
    if task.next_retry_at is not None:
        return gettext("retrying")
    return gettext("aggregating") if task.group_key is not None and task.claim == 0 else gettext("scheduled")
