"""Status labels: the status of a task or workflow, and why a pending task waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from ..models import Task
from ..ops.task_states import Wait, wait_of


def status_badge(row: Any) -> SafeString:
    """Return the status of a task or workflow as a label with a CSS class."""
    badge = '<span class="horsies-status horsies-status-{}">{}</span>'
    return format_html(badge, row.status.lower(), row.get_status_display())


#: What pending tasks wait for, in words.
_WAITS: Final = {
    Wait.OVERDUE: gettext_lazy("overdue"),
    Wait.BLOCKED: gettext_lazy("blocked"),
    Wait.SUSPENDED: gettext_lazy("suspended"),
    Wait.DUE: gettext_lazy("due"),
    Wait.RETRYING: gettext_lazy("retrying"),
    Wait.AGGREGATING: gettext_lazy("aggregating"),
    Wait.SCHEDULED: gettext_lazy("scheduled"),
}


def wait_text(task: Task, now: datetime) -> str:
    """Return what a pending task waits for; empty for other tasks. ``now`` is the database's current time."""
    wait = wait_of(task, now)
    return "" if wait is None else str(_WAITS[wait])
