"""The tasks and workflows that a schedule has sent, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from django.db.models import Model, QuerySet
from django.db.models.fields.json import KT
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.numbers import format_duration
from ...db.now import Now
from ...models import Task, Workflow
from ..ages import relative_time
from ..links import Links
from ..status_text import status_badge

#: Maximum number of runs on a page.
MAX_RUNS: Final = 20

#: Columns that are read.
_TIMES: Final = ("sent_at", "started_at", "completed_at", "cancelled_at")
_OF_TASK: Final = ("pk", "task_name", "status", "error_code", "failed_at", "expired_at", *_TIMES)
_OF_WORKFLOW: Final = ("pk", "name", "status", *_TIMES)


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """A task or workflow that a schedule sent."""

    sent_at: datetime
    link: SafeString | str
    badge: SafeString
    error_code: str
    sent: SafeString
    took: str


@dataclass(frozen=True, slots=True)
class History:
    """The newest runs, links to all of them, and whether some may be hidden from this user."""

    runs: list[ScheduleRun]
    all: list[SafeString | str]
    is_hidden: bool


def history_of(key: int, database: str | None, links: Links) -> History:
    """Return what a schedule sent, as far as this user may view it. Takes two indexed statements."""
    runs: list[ScheduleRun] = []
    everything = []
    if links.can_view(Task):
        tasks = Task.objects.using(database).only(*_OF_TASK)
        runs += (_run(links, task, task.task_name, task.finished_at) for task in _newest(tasks, key))
        everything.append(links.to_list(Task, _("All tasks of this schedule"), schedule_id=str(key), kind="all"))
    if links.can_view(Workflow):
        workflows = Workflow.objects.using(database).only(*_OF_WORKFLOW).annotate(error_code=KT("error__error_code"))
        workflow_runs = [
            _run(links, workflow, workflow.name, workflow.completed_at or workflow.cancelled_at)
            for workflow in _newest(workflows, key)
        ]
        runs += workflow_runs
        everything += (
            [links.to_list(Workflow, _("All workflows of this schedule"), schedule_id=str(key))]
            if workflow_runs
            else []
        )
    runs.sort(key=attrgetter("sent_at"), reverse=True)
    return History(runs[:MAX_RUNS], everything, is_hidden=not (links.can_view(Task) and links.can_view(Workflow)))


def _newest(rows: QuerySet[Any], key: int) -> QuerySet[Any]:
    runs: QuerySet[Any] = rows.filter(schedule_id=key).annotate(read_at=Now())
    return runs.order_by("-schedule_id", "-pk")[:MAX_RUNS]


def _run(links: Links, row: Any, name: str, ended: datetime | None) -> ScheduleRun:
    model: type[Model] = type(row)
    return ScheduleRun(
        row.sent_at,
        links.to(model, row.pk, name),
        status_badge(row),
        row.error_code or "",
        relative_time(row.sent_at, row.read_at),
        format_duration((ended or row.read_at) - row.started_at) if row.started_at else "-",
    )
