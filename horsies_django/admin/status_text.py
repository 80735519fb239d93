"""Status labels: the status of a task or workflow, and why a pending task waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from ..models import Task, Workflow
from ..ops.task_states import Wait, wait_of
from .formatting import cut, short
from .links import Links


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
    Wait.AWAITING: gettext_lazy("awaiting"),
}


def wait_text(task: Task, now: datetime) -> str:
    """Return what a pending task waits for; empty for other tasks. ``now`` is the database's current time."""
    wait = wait_of(task, now)
    return "" if wait is None else str(_WAITS[wait])


def wait_link(waits_for: str, links: Links) -> SafeString | str:
    """Return what a task that has begun waits for: a link to its workflow, or to the tasks that wait for the same."""
    kind, _colon, key = waits_for.partition(":")
    if kind == "workflow":
        return format_html("workflow:{}", links.to(Workflow, key, short(key)))
    return links.to_list(Task, cut(waits_for), waits_for=waits_for)
