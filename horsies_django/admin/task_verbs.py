"""What an operator may do to tasks."""

from __future__ import annotations

from functools import partial
from typing import Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ..models.transitions import TaskQuerySet
from ..states import TASK_LIVE_STATES, TASK_RETRYABLE_STATES, TaskStatus
from .verbs import Verb


def _cancelled(count: int) -> str:
    return ngettext("%d task was cancelled.", "%d tasks were cancelled.", count) % count


RETRY: Final = Verb(
    name="retry",
    label=_("Retry"),
    label_of_many=_("Retry selected tasks"),
    act=TaskQuerySet.retry,
    told=lambda count: ngettext("%d task is due again.", "%d tasks are due again.", count) % count,
    fits=lambda task: task.status in TASK_RETRYABLE_STATES,
)

CANCEL: Final = Verb(
    name="cancel",
    label=_("Cancel"),
    label_of_many=_("Cancel selected tasks that have not begun"),
    act=TaskQuerySet.cancel,
    told=_cancelled,
    fits=lambda task: task.status in TASK_LIVE_STATES - {TaskStatus.RUNNING},
)

CANCEL_RUNNING: Final = Verb(
    name="cancel_running",
    label=_("Cancel while it runs"),
    label_of_many=_("Cancel selected tasks, running ones too"),
    act=partial(TaskQuerySet.cancel, include_running=True),
    told=_cancelled,
    fits=lambda task: task.status == TaskStatus.RUNNING,
    permission="cancel",
)

#: In the order of the buttons.
TASK_VERBS: Final = (RETRY, CANCEL, CANCEL_RUNNING)
