"""The columns of the task list, each with a main line and a second one.

Durations that have not ended are measured to ``seen_at``, the database's time.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db import models
from django.db.models import Exists, OuterRef
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.numbers import format_duration
from ...core.status import TASK_LIVE_STATES, TaskStatus
from ...models import Queue, Task, Workflow
from ...ops.task_states import Wait, wait_of, waits_until
from ..ages import age, relative_time
from ..formatting import cell, progress_bar, short, short_id
from ..status_text import status_badge, wait_link, wait_text

if TYPE_CHECKING:
    from .changelist import LastError

#: The states of tasks that workers hold. Their tabs are refreshed and compare run times.
HELD_STATES: Final = frozenset({"running", "claimed", "active"})

#: Whether the queue of a task is paused.
IS_QUEUE_PAUSED: Final = Exists(Queue.objects.filter(name=OuterRef("queue_name"), paused=True))

#: Seconds that a task must have waited for the row to say so.
LONG_WAIT: Final = 1.0


class TaskColumns:
    """The columns of the task list. :func:`.changelist.complete_rows` has added what they need."""

    @admin.display(description=_("state"))
    def shown_state(self, task: Any) -> SafeString:
        """The state, what it waits for, and the time that fits: when it ended, began, was claimed or is due."""
        now = _now(task)
        moment, word, waits_for = _moment_of(task), wait_text(task, now), ""
        match wait_of(task, now):
            case Wait.OVERDUE:
                moment = task.good_until
            case Wait.AWAITING:
                moment, waits_for = waits_until(task, now), wait_link(task.waits_for, task.page_links)
        mark = '<span class="horsies-status horsies-status-pending">{}</span>'
        badge = format_html(mark, word[:1].upper() + word[1:]) if word else status_badge(task)
        return cell(badge, waits_for, relative_time(moment, now) if moment else "")

    @admin.display(description=_("task"))
    def shown_name(self, task: Task) -> SafeString:
        """The last part of the task's name, with its module below."""
        module, _dot, name = task.task_name.rpartition(".")
        return format_html('<span class="horsies-name" title="{}">{}</span>', task.task_name, cell(name, module))

    @admin.display(description=_("arguments, error"))
    def shown_call(self, task: Any) -> SafeString:
        """The beginning of the masked arguments, for large ones their size; the error or the progress."""
        call = format_html('<span class="horsies-call">{}</span>', task.call) if task.call else ""
        is_live = task.status in TASK_LIVE_STATES
        progress = progress_bar(task.progress) if is_live and task.progress is not None else ""
        return cell(call, progress, error_text(task.last_error) if task.last_error else "")

    @admin.display(description=_("run time, attempts"))
    def shown_run(self, task: Any) -> SafeString:
        """The run time, so far or in all, the attempts made and allowed, and the wait time if it was long.

        ``Retry`` and operators may add attempts.
        """
        attempts = gettext("attempt %(made)d/%(allowed)d")
        numbers = {"made": task.attempt, "allowed": max(task.attempt, task.max_retries + 1)}
        waited = (task.started_at - task.due_at).total_seconds() if task.started_at else 0.0
        wait = gettext("waited %s") % format_duration(waited) if waited >= LONG_WAIT else ""
        return cell(_run_time(task), *getattr(task, "comparison", ()), attempts % numbers, wait)

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
        link = task.page_links.to_list(Task, words, worker=worker)
        return cell(queue, link, getattr(task, "worker_note", ""))

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


def error_text(error: LastError) -> SafeString:
    """Return an error and the beginning of its message."""
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


def _now(task: models.Model) -> datetime:
    seen: Any = getattr(task, "seen_at", None)
    return seen or timezone.now()
