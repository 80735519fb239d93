"""By which rule a task is the only one with its key, in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.status import TaskStatus
from ...core.unique import HOLDING, UniqueUntil
from ...models import Task
from ..formatting import format_time

_WORDS: Final[Mapping[UniqueUntil, Any]] = {
    UniqueUntil.STARTED: gettext_lazy("until it starts"),
    UniqueUntil.DONE: gettext_lazy("until it is done"),
    UniqueUntil.SUCCESS: gettext_lazy("until it has succeeded"),
    UniqueUntil.PERIOD: gettext_lazy("whatever becomes of it"),
}


def describe_unique_until(task: Task, now: datetime) -> str:
    """Return until when no other task may have its key, and whether that is over."""
    until = UniqueUntil(task.unique_until or UniqueUntil.DONE)
    if until == UniqueUntil.RELEASED:
        return _("no more: it has given its key back")
    words = str(_WORDS[until])
    if task.unique_expires_at is not None:
        words = _("%(rule)s, but no longer than %(time)s") % {
            "rule": words,
            "time": format_time(task.unique_expires_at),
        }
    is_past = task.unique_expires_at is not None and task.unique_expires_at <= now
    is_over = is_past or TaskStatus(task.status) not in HOLDING[until]
    return _("%s: that is over") % words if is_over else words
