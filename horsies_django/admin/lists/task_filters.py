"""Filters of the task list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from ...core.status import TaskStatus
from ...db.expressions import NowPlus
from ...db.now import Now
from ...db.row_key import KEY_LENGTH, RowRef
from ...models import ErrorGroup, Schedule, Worker
from ...models.claim.query import not_past_deadline
from ...models.error_group import is_fingerprint
from ...models.filters import due_before
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...ops.keyset import scopes
from ...ops.keyset.criteria import Criteria
from ...ops.keyset.scopes import IndexRange, ScanScope
from ...ops.task_criteria import BY_STATE, about_row, awaiting, in_error_group
from ..base import queue_database
from ..links import can_view
from .choice_filters import ChoiceFilter, FoldedFilter, LinkedFilter, form_of

#: Maximum number of workers that are choices.
MAX_CHOICES: Final = 30
#: Seconds after which a due task counts as waiting long.
LATE_AFTER: Final = 60

_IS_STEP: Final = Q(task_name__startswith=ENGINE_TASK_PREFIX)
_ENDS: Final = ("completed_at", "failed_at", "cancelled_at", "expired_at")
#: Durations: seconds and label by parameter value.
_LENGTHS: Final = {
    "1s": (1, _("longer than a second")),
    "10s": (10, _("longer than ten seconds")),
    "1m": (60, _("longer than a minute")),
    "10m": (600, _("longer than ten minutes")),
    "1h": (3_600, _("longer than an hour")),
}
#: The labels of the states that pending and held tasks are in, besides the statuses.
_STATE_LABELS: Final = {
    "due": _("Due"),
    "blocked": _("Blocked"),
    "scheduled": _("Scheduled"),
    "aggregating": _("Aggregating"),
    "retrying": _("Retrying"),
    "awaiting": _("Awaiting"),
    "active": _("Active"),
}


class StateFilter(ChoiceFilter):
    """Filters by state: the statuses, and for pending tasks why they wait."""

    title = _("state")
    parameter_name = "state"
    #: Pending tasks, those that workers hold, the others.
    options: ClassVar = {
        state: (label, BY_STATE[state])
        for state, label in {
            "pending": TaskStatus.PENDING.label,
            **_STATE_LABELS,
            **{status.lower(): label for status, label in TaskStatus.choices},
        }.items()
    }


class KindFilter(ChoiceFilter):
    """Hides the workflow engine's internal tasks, of which there are many, unless they are asked for."""

    title = _("show")
    parameter_name = "kind"
    default = "tasks"
    options: ClassVar = {
        "tasks": (_("tasks"), Criteria(~_IS_STEP)),
        "steps": (_("internal steps"), Criteria(_IS_STEP)),
        "all": (_("both"), Criteria()),
    }


class ProblemFilter(ChoiceFilter):
    """Finds tasks that need attention: retried, overdue, or due for a long time."""

    title = _("problems")
    parameter_name = "trouble"
    _IS_LATE: Final = Q(not_past_deadline(), due_before(NowPlus(-LATE_AFTER)), status=TaskStatus.PENDING)
    options: ClassVar = {
        "retried": (_("retried"), Criteria(Q(attempt__gt=1) | Q(retry_count__gt=0))),
        "late": (_("due for more than a minute"), Criteria(_IS_LATE, scopes.DUE)),
        "overdue": (_("overdue (past their deadline)"), BY_STATE["overdue"]),
    }


class DueFilter(FoldedFilter):
    """Filters by when tasks are or were due, relative to now."""

    title = _("due time")
    parameter_name = "due"
    options: ClassVar[Mapping[str, tuple[Any, Criteria]]] = {
        name: (label, Criteria(Q(enqueued_at__gte=NowPlus(since), enqueued_at__lt=NowPlus(until)), scope))
        for name, since, until, label, scope in (
            ("last_hour", -3_600, 0, _("in the last hour"), scopes.TABLE),
            ("last_day", -86_400, 0, _("in the last 24 hours"), scopes.TABLE),
            ("next_hour", 0, 3_600, _("in the next hour"), scopes.DEFERRED),
            ("next_day", 0, 86_400, _("in the next 24 hours"), scopes.DEFERRED),
        )
    }


def _threshold(seconds: float, *ends: str) -> Any:
    """Return the latest start at which a duration would be exceeded at the first end that is not null, or now."""
    return Coalesce(*ends, Now()) - Value(timedelta(seconds=seconds))


class WaitedFilter(FoldedFilter):
    """Filters by the time from being due to the start; for tasks that never started, to the end or to now."""

    title = _("wait time")
    parameter_name = "waited"
    options: ClassVar = {
        name: (label, Criteria(due_before(_threshold(seconds, "started_at", *_ENDS))))
        for name, (seconds, label) in _LENGTHS.items()
    }


class RanFilter(FoldedFilter):
    """Filters by the running time, or the running time so far."""

    title = _("run time")
    parameter_name = "ran"
    options: ClassVar = {
        name: (label, Criteria(Q(started_at__lt=_threshold(seconds, *_ENDS))))
        for name, (seconds, label) in _LENGTHS.items()
    }


class AttemptsFilter(FoldedFilter):
    """Filters by the number of attempts."""

    title = _("attempts")
    parameter_name = "attempts"
    options: ClassVar = {
        "none": (_("none"), Criteria(Q(attempt=0))),
        "one": (_("one"), Criteria(Q(attempt=1))),
        "more": (_("more than one"), Criteria(Q(attempt__gt=1))),
        "all": (_("all used up"), Criteria(Q(attempt__gt=F("max_retries")))),
    }


class PriorityFilter(ChoiceFilter):
    """Filters by ranges of priority, or by a number."""

    title = _("priority")
    parameter_name = "priority"
    template = "admin/horsies_django/priority_filter.html"
    options: ClassVar = {
        "high": (_("above 0"), Criteria(Q(priority__gt=0))),
        "normal": (_("0"), Criteria(Q(priority=0))),
        "low": (_("below 0"), Criteria(Q(priority__lt=0))),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the three ranges, and the requested number."""
        number = _priority(request.GET.get("priority", ""))
        return [*super().lookups(request, model_admin), *([(str(number), str(number))] if number else [])]

    def value(self) -> Any:
        """Return the requested range or number, without a plus sign or leading zeros."""
        number = _priority(super().value() or "")
        return super().value() if number is None else str(number or "normal")

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices, and what the form of an exact number needs."""
        yield from super().choices(changelist)
        value = "" if self.selected in self.options else self.selected
        yield form_of(changelist, "priority", value=value or "", min=TASK_MIN_PRIORITY, max=TASK_MAX_PRIORITY)


def _priority(text: str) -> int | None:
    """Return the priority in a parameter; None if it is none."""
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        return None
    return number if TASK_MIN_PRIORITY <= (number := int(text)) <= TASK_MAX_PRIORITY else None


class WorkerFilter(FoldedFilter):
    """Filters by the worker that holds or held the task; offers the workers in the table and the requested one."""

    title = _("worker")
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the workers."""
        rows = Worker.objects.using(queue_database()).order_by("-last_beat_at").values_list("pk", flat=True)
        return self.choices_with_selected(request, set(rows[:MAX_CHOICES]))

    def criteria_of(self, choice: str) -> Criteria:
        """Match the worker that claimed it last."""
        return Criteria(Q(claimed_by_worker_id=choice))


class ErrorGroupFilter(LinkedFilter):
    """Filters by error group: tasks whose last attempt failed with this error, failed and retrying ones."""

    title = _("error")
    parameter_name = "fingerprint"

    def is_valid(self, value: str) -> bool:
        """Return whether it is a fingerprint."""
        return is_fingerprint(value)

    def name_of(self, value: str, request: HttpRequest, model_admin: Any) -> str:
        """Return the group's name."""
        return str(ErrorGroup.objects.using(queue_database()).filter(pk=value).first() or value)

    def criteria_of(self, choice: str) -> Criteria:
        """Match the tasks of the group."""
        return in_error_group(choice)


class LimitFilter(LinkedFilter):
    """Filters tasks that wait for a place of a limit, without those past their deadline, which no limit releases."""

    title = _("waits for limit")
    parameter_name = "waits_for_limit"

    def is_valid(self, value: str) -> bool:
        """Return whether a limit can have this key."""
        return 0 < len(value) <= 255 and "\0" not in value

    def criteria_of(self, choice: str) -> Criteria:
        """The tasks that wait for a limit have an index."""
        rows = Q(status=TaskStatus.PENDING, blocked=True, limit_key=choice)
        return Criteria(rows & not_past_deadline(), ScanScope((IndexRange(rows, ("-priority", "enqueued_at", "pk")),)))


class WaitsForFilter(LinkedFilter):
    """Filters tasks that have begun by what they wait for, such as ``event:approved``."""

    title = _("waits for")
    parameter_name = "waits_for"

    def is_valid(self, value: str) -> bool:
        """Return whether a task can wait for this."""
        return 0 < len(value) <= 300 and "\0" not in value

    def criteria_of(self, choice: str) -> Criteria:
        """The tasks that wait for the same have an index."""
        return awaiting(choice)


class AboutFilter(LinkedFilter):
    """Filters tasks by the row that they are about, such as ``shop.Order:5``."""

    title = _("about")
    parameter_name = "about"

    def is_valid(self, value: str) -> bool:
        """Return whether a task can be about this row."""
        label, colon, key = value.partition(":")
        return bool(label and colon) and len(label) <= 201 and len(key) <= KEY_LENGTH and "\0" not in value

    def criteria_of(self, choice: str) -> Criteria:
        """The tasks about a row have an index."""
        label, _colon, key = choice.partition(":")
        return about_row(RowRef(label, key))


class ScheduleFilter(LinkedFilter):
    """Filters tasks and workflows by schedule."""

    title = _("schedule")
    parameter_name = "schedule_id"

    def is_valid(self, value: str) -> bool:
        """Return whether it is a key that every database accepts."""
        return value.isdecimal() and value.isascii() and len(value) <= 18

    def name_of(self, value: str, request: HttpRequest, model_admin: Any) -> str:
        """Return the schedule's name if this user may view it."""
        if not can_view(model_admin.admin_site, request, Schedule):
            return value
        rows = Schedule.objects.using(queue_database()).filter(pk=value).values_list("name", flat=True)
        return rows.first() or value

    def criteria_of(self, choice: str) -> Criteria:
        """Rows of a schedule have an index."""
        rows = Q(schedule_id=choice)
        return Criteria(rows, ScanScope(partitions=(rows,)))
