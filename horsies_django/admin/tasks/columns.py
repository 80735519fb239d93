"""The columns of the task list, each with a main line and a second one.

Durations that have not ended are measured to ``seen_at``, the database's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db import models
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Left
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.numbers import format_about, format_brief, format_duration, format_number
from ...core.results import OperationalCode
from ...core.status import TASK_LIVE_STATES, TaskStatus
from ...db.now import Now
from ...models import Queue, Task, TaskAttempt, Worker, Workflow
from ...ops.inspector.task_states import Wait, wait_of
from ...ops.metrics.workers import HeldTasks, with_times, worker_status
from ...ops.payload_view.excerpt import excerpt_of, with_short_arguments
from ...ops.running import HOURS, NEAR_LIMIT, UsualRunTime, usual_run_times
from ..ages import age, relative_time
from ..formatting import progress_bar
from ..links import Links
from ..lists.cells import cell, short, short_id
from ..status_text import status_badge, wait_text
from ..workers_queues.state_text import status_label

#: Whether the queue of a task is paused.
IS_QUEUE_PAUSED: Final = Exists(Queue.objects.filter(name=OuterRef("queue_name"), paused=True))

#: Maximum number of characters of an error message that are read.
MAX_MESSAGE: Final = 240

#: Seconds that a task must have waited for the row to say so.
LONG_WAIT: Final = 1.0


@dataclass(frozen=True, slots=True)
class LastError:
    """An error: its code, the class of its exception and the beginning of its message, each possibly empty."""

    code: str
    exception_class: str = ""
    message: str = ""

    @property
    def label(self) -> str:
        """The exception class without its module; the code before it, unless that says only that it was unhandled."""
        kind = self.exception_class.rpartition(".")[2]
        if kind and self.code == OperationalCode.UNHANDLED_EXCEPTION:
            return kind
        return " ".join(filter(None, (self.code, kind)))


def with_columns(tasks: QuerySet[Any]) -> QuerySet[Any]:
    """Read what the columns need: small arguments, the database's current time as ``seen_at``, the queue's pause."""
    return with_short_arguments(tasks.annotate(seen_at=Now(), is_queue_paused=IS_QUEUE_PAUSED))


def complete_rows(rows: Sequence[Any], links: Links) -> None:
    """Add the links and the latest error to each row, in one statement."""
    errors = _last_errors(rows, rows[0]._state.db) if rows else {}
    for row in rows:
        row.page_links, row.last_error = links, errors.get(row.pk)


def complete_held_rows(rows: Sequence[Any], links: Links) -> None:
    """Add what the tabs of held tasks show besides: the usual run times and the workers, in a statement each."""
    if not rows:
        return
    database = rows[0]._state.db
    usual = usual_run_times(database, {row.task_name for row in rows})
    keys = {row.claimed_by_worker_id for row in rows} - {None}
    workers: dict[str, Any] = {}
    if keys and links.can_view(Worker):
        worker_rows = with_times(Worker.objects.using(database).filter(pk__in=keys))
        workers = {worker.pk: worker_status(worker, HeldTasks()) for worker in worker_rows}
    for row in rows:
        row.usual, row.worker = usual.get(row.task_name), workers.get(row.claimed_by_worker_id)


class TaskColumns:
    """The columns of the task list."""

    @admin.display(description=_("state"))
    def shown_state(self, task: Task) -> SafeString:
        """The state, and the time that fits it: when the task ended, began, was claimed or is due."""
        now = _now(task)
        moment, word = _moment_of(task), wait_text(task, now)
        if wait_of(task, now) is Wait.OVERDUE:
            moment = task.good_until
        mark = '<span class="horsies-status horsies-status-pending">{}</span>'
        badge = format_html(mark, word[:1].upper() + word[1:]) if word else status_badge(task)
        return cell(badge, relative_time(moment, now) if moment else "")

    @admin.display(description=_("task"))
    def shown_name(self, task: Task) -> SafeString:
        """The last part of the task's name, with its module below."""
        module, _dot, name = task.task_name.rpartition(".")
        return format_html('<span class="horsies-name" title="{}">{}</span>', task.task_name, cell(name, module))

    @admin.display(description=_("arguments, error"))
    def shown_call(self, task: Any) -> SafeString:
        """The beginning of the masked arguments, for large ones their size; the error or the progress."""
        words = excerpt_of(task)
        call = format_html('<span class="horsies-call">{}</span>', words) if words else ""
        is_live = task.status in TASK_LIVE_STATES
        progress = progress_bar(task.progress) if is_live and task.progress is not None else ""
        error: LastError | None = getattr(task, "last_error", None)
        return cell(call, progress, _error(error) if error else "")

    @admin.display(description=_("run time, attempts"))
    def shown_run(self, task: Task) -> SafeString:
        """The run time, so far or in all, the attempts made and allowed, and the wait time if it was long.

        ``Retry`` and operators may add attempts.
        """
        attempts = gettext("attempt %(made)d/%(allowed)d")
        numbers = {"made": task.attempt, "allowed": max(task.attempt, task.max_retries + 1)}
        waited = (task.started_at - task.due_at).total_seconds() if task.started_at else 0.0
        wait = gettext("waited %s") % format_duration(waited) if waited >= LONG_WAIT else ""
        return cell(_run_time(task), *_comparison(task), attempts % numbers, wait)

    @admin.display(description=_("queue, worker"))
    def shown_place(self, task: Any) -> SafeString:
        """The queue, whether it is paused, the priority unless that is 0, and the worker, linked to its tasks."""
        queue: SafeString | str = task.queue_name
        if task.priority:
            words = gettext("priority %d") % task.priority
            queue = format_html('{} <span class="quiet">{}</span>', queue, words)
        queue = with_pause(queue, task)
        worker = task.claimed_by_worker_id
        if not worker:
            return cell(queue)
        words = format_html('<span title="{}">{}</span>', worker, short(worker))
        status = getattr(task, "worker", None)
        note = status_label(status) if status is not None and not status.is_online else ""
        return cell(queue, task.page_links.to_list(Task, words, worker=worker), note)

    @admin.display(description=_("id"))
    def shown_id(self, task: Any) -> SafeString:
        """The end of its id, because ids sent at about the same time begin alike; its workflow, or when it was sent."""
        sent = format_html(gettext("sent {}"), relative_time(task.sent_at, _now(task)))
        return cell(short_id(task.pk), _workflow(task) or sent)


def with_pause(queue: SafeString | str, task: Any) -> SafeString | str:
    """Return the queue of a task with :data:`IS_QUEUE_PAUSED`, marked as paused if the task waits for it."""
    if task.status != TaskStatus.PENDING or not task.is_queue_paused:
        return queue
    return format_html('{} <span class="quiet">{}</span>', queue, gettext("paused"))


def _moment_of(task: Task) -> datetime | None:
    """Return the time that fits the state of a task."""
    if task.status == TaskStatus.RUNNING:
        return task.started_at
    if task.status == TaskStatus.CLAIMED:
        return task.claimed_at
    moment: datetime | None = task.due_at if task.status == TaskStatus.PENDING else task.finished_at
    return moment


def _last_errors(tasks: Iterable[Task], database: str) -> dict[UUID, LastError]:
    """Return the errors of failed tasks and of tasks that wait for a retry, by id.

    One statement reads the attempts in which they failed, and no traceback. An error without an attempt, such as a
    cancellation, has only a code.
    """
    with_error = [task for task in tasks if task.error_code]
    errors = {task.pk: LastError(task.error_code or "") for task in with_error}
    if attempts := [Q(task=task.pk, attempt=task.attempt) for task in with_error if task.attempt]:
        rows: Any = TaskAttempt.objects.using(database).filter(reduce(or_, attempts)).exclude(error_code="")
        columns = rows.values_list("task_id", "error_code", "exception_class", Left("error_message", MAX_MESSAGE))
        codes = {task.pk: task.error_code for task in with_error}
        # The task may have failed again since, or been cancelled.
        errors |= {key: LastError(code, *texts) for key, code, *texts in columns if code == codes[key]}
    return errors


def _error(error: LastError) -> SafeString:
    text = f": {error.message}" if error.message else ""
    return format_html('<span class="horsies-row-error"><strong>{}</strong>{}</span>', error.label, text)


def _workflow(task: Any) -> SafeString | str:
    """Return the workflow that a task is a node of, linked if the user may view it."""
    if task.workflow_id is None:
        return ""
    key = format_html('<span title="{}">{}</span>', task.workflow_id, short(str(task.workflow_id)))
    return format_html(gettext("workflow {}"), task.page_links.to(Workflow, task.workflow_id, key))


def _run_time(task: Task) -> SafeString | str:
    start, end, now = task.started_at, task.finished_at, _now(task)
    if start is None or (end is None and start > now):
        return ""
    label = format_html('<span class="horsies-narrow">{} </span>', gettext("run time"))
    if end is not None:
        return format_html("{}{}", label, format_duration(end - start))
    so_far = age((now - start).total_seconds(), start, "full")
    return format_html("{}{}", label, format_html(gettext("%s so far").replace("%s", "{}"), so_far))


def _comparison(task: Any) -> Iterator[SafeString | str]:
    """Yield how the run time of a running task compares with its limit and with its usual one, if that was read."""
    if not hasattr(task, "usual") or task.status != TaskStatus.RUNNING or task.started_at is None:
        return
    usual: UsualRunTime | None = task.usual
    seconds = max(0.0, (_now(task) - task.started_at).total_seconds())
    mark = '<span class="horsies-badge horsies-badge-{}">{}</span>'
    if task.timeout and seconds >= NEAR_LIMIT * task.timeout:
        text = gettext("over its time limit of %s") if seconds >= task.timeout else gettext("near its time limit of %s")
        yield format_html(mark, "limit", text % format_brief(task.timeout))
    if usual is None:
        return
    if usual.is_exceeded_by(seconds):
        yield format_html(mark, "slow", gettext("over p95"))
    title = ngettext(
        "95 % of the %(count)s run that completed in the last %(hours)d hours took at most this long (within 20 %).",
        "95 % of the %(count)s runs that completed in the last %(hours)d hours took at most this long (within 20 %).",
        usual.count,
    )
    title = title.replace("%(count)s", format_number(usual.count)).replace("%(hours)d", str(HOURS))
    yield format_html('<abbr title="{}">p95</abbr> {}', title, format_about(usual.p95))
    yield format_html(  # the browser counts it
        '<progress class="horsies-usual" aria-label="{}" max="{}" value="{}" data-horsies-age="{}"></progress>',
        gettext("run time as a part of the p95"),
        f"{usual.p95:.3f}",
        f"{seconds:.1f}",
        f"{seconds:.1f}",
    )


def _now(task: models.Model) -> datetime:
    seen: Any = getattr(task, "seen_at", None)
    return seen or timezone.now()
