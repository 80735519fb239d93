"""The reasons that hold a task back, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...core.compat import task_backends
from ...core.durations import format_duration, format_relative
from ...core.numbers import fill_numbers
from ...core.options import Options
from ...db.now import Now
from ...enqueue.backend import HorsiesBackend
from ...models import Task, Workflow
from ...models.transitions import TaskQuerySet

#: Maximum number of rows that one reason names, and of tasks that hold a limit.
MAX_RELATED: Final = 20
MAX_HOLDERS: Final = 5

#: For how long a task has held a limit.
HELD_FOR: Final = gettext_lazy("{status} for {duration}")


class ReasonCode(StrEnum):
    """The kind of reason that holds back a task or a workflow node."""

    SCHEDULED = "SCHEDULED"
    RETRYING = "RETRYING"
    PAST_DEADLINE = "PAST_DEADLINE"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    QUEUE_FULL = "QUEUE_FULL"
    RATE_LIMITED = "RATE_LIMITED"
    NO_WORKER = "NO_WORKER"
    WORKERS_STOPPING = "WORKERS_STOPPING"
    WORKERS_QUIET = "WORKERS_QUIET"
    WORKERS_STALLED = "WORKERS_STALLED"
    OTHER_VERSION = "OTHER_VERSION"
    WORKERS_BUSY = "WORKERS_BUSY"
    LIMIT_FULL = "LIMIT_FULL"
    OTHERS_FIRST = "OTHERS_FIRST"
    CLAIMED = "CLAIMED"
    SILENT = "SILENT"
    STALLED = "STALLED"
    WAITS_FOR_NODES = "WAITS_FOR_NODES"
    SLEEPS = "SLEEPS"
    WAITS_FOR_EVENT = "WAITS_FOR_EVENT"
    NOTHING = "NOTHING"


@dataclass(frozen=True, slots=True)
class RelatedRow:
    """A row that a reason refers to: its model, its primary key and a label.

    Of a task that holds a limit also its translated status, and since when it has it.
    """

    model: type[models.Model]
    key: Any
    label: str
    status: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: its code, a translated sentence, a time if one applies, and the rows it is about.

    ``more`` is the number of rows that it is about besides those that ``about`` names.
    """

    code: ReasonCode
    words: str
    when: datetime | None = None
    about: tuple[RelatedRow, ...] = ()
    more: int = 0

    def as_text(self, now: datetime) -> str:
        """Return it as one line that names the tasks that hold a limit, and when a rate admits the next one."""
        holders = [
            f"{row.label} {row.key} ({HELD_FOR.format(status=row.status, duration=format_duration(now - row.since))})"
            for row in self.about
            if row.since is not None
        ]
        names = ", ".join([*holders, and_more(self.more)] if self.more else holders)
        when = ""
        if self.when is not None and self.code is ReasonCode.RATE_LIMITED:
            when = f"({format_relative((now - self.when).total_seconds())})"
        return " ".join(filter(None, (self.words, names, when)))


def and_more(count: int) -> str:
    """Return how many rows there are besides those before it."""
    return fill_numbers(ngettext("and %d more", "and %d more", count), count)


def paused_workflow(workflow: Workflow) -> Reason:
    """Return the reason that a paused workflow gives to its nodes and their tasks."""
    words = _("Its workflow is paused. Tasks that have not started are withdrawn and run when the workflow is resumed.")
    return Reason(ReasonCode.WORKFLOW_PAUSED, words, about=(RelatedRow(Workflow, workflow.pk, workflow.name),))


def tasks_in_database_of(task: Task) -> TaskQuerySet:
    """Return all tasks in the database that the task was read from."""
    return Task.objects.using(database_of(task))


def database_of(row: models.Model) -> str | None:
    """Return the alias of the database that the row was read from."""
    return row._state.db


def now_of(task: Task) -> datetime:
    """Return the database's current time, or the task's ``sent_at`` if its row is gone."""
    now = tasks_in_database_of(task).filter(pk=task.pk).values_list(Now(), flat=True)
    return now.first() or task.sent_at


def backend_options(alias: str) -> Options:
    """Return the options of a backend; the defaults if the settings no longer have it as a HorsiesBackend."""
    backend = task_backends[alias] if alias in task_backends.settings else None
    return backend.parsed.options if isinstance(backend, HorsiesBackend) else Options()
