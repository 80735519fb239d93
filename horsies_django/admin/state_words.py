"""The state of a task as asynq would call it, which tells of a pending one why it waits."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Task
from ..states import TaskStatus

_WORDS: Final = {
    TaskStatus.CLAIMED: _("active"),
    TaskStatus.RUNNING: _("active"),
    TaskStatus.COMPLETED: _("completed"),
    TaskStatus.FAILED: _("archived"),
}


def state_by_asynq(task: Task, now: datetime) -> str:
    """Return asynq's word for the state of a task; nothing where it has none. ``now`` is the database's clock."""
    if task.status != TaskStatus.PENDING:
        return str(_WORDS.get(TaskStatus(task.status), ""))
    if task.next_retry_at is not None:
        return gettext("retrying")
    return gettext("scheduled") if task.enqueued_at > now else gettext("due")
