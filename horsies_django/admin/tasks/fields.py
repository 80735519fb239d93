"""The fields of a task's page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import admin
from django.db.models import TextField
from django.db.models.functions import Cast
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.compat import task_backends
from ...core.numbers import format_duration, format_number
from ...core.results import OutcomeCode
from ...core.status import TASK_LIVE_STATES, TaskStatus
from ...core.unique import HOLDING, UniqueUntil
from ...db.row_key import RowRef, model_of
from ...models import Limit, Task, TaskItem, Worker, Workflow, WorkflowTask
from ...ops.diagnosis.retries import describe_retry_policy
from ...ops.diagnosis.waiting import waits_since
from ...ops.payload_view.contents import PARTS, contents_of, decode
from ...ops.task_options import describe_retention
from ...ops.task_states import State, state_of, waits_until
from ..ages import counted
from ..base import QueueModelAdmin
from ..formatting import as_json, copy_button, format_time, masked_json, progress_bar, time_column
from ..links import Links, schedule_link
from ..status_text import status_badge, wait_link, wait_text
from .attempts import is_single_run, latest_attempts, process_of
from .columns import with_pause

#: Maximum number of new runs that a page links.
MAX_LINKED: Final = 5

#: A task that is due within this time of its sending is due at once.
_AT_ONCE: Final = timedelta(milliseconds=1)


def _is_due_shown(task: Any) -> bool:
    """Return whether its first attempt is due later than it was sent."""
    is_later = task.attempt <= 1 and abs(task.enqueued_at - task.sent_at) > _AT_ONCE
    return is_later and task.waits_for is None and not _is_retrying(task)


def _is_retrying(task: Any) -> bool:
    return bool(state_of(task, task.read_at) == State.RETRYING)  # the row keeps the time after the attempt has started


def _is_start_shown(task: Any) -> bool:
    """Return whether no list of attempts shows when it started."""
    return task.started_at is not None and not any(
        attempt.started_at == task.started_at for attempt in latest_attempts(task) if not is_single_run(task)
    )


def _is_wait_shown(task: Any) -> bool:
    """Return whether it has waited since it was due, for its first attempt; the timeline has those of all attempts."""
    is_due = task.due_at <= (task.started_at or task.finished_at or task.read_at)
    return bool(task.attempt <= 1 and is_due and not task.blocked)


class TaskFields:
    """The fields of a task's page. One that says nothing of a task is empty.

    The task has the annotation ``read_at``, the database's time.
    """

    def __init__(self, admin: QueueModelAdmin, task: Any, links: Links) -> None:
        self.admin = admin
        self.task = task
        self.links = links
        self.node = _node_of(task)

    page_enqueued_at = time_column("enqueued_at", _("due at"), exactly=True, is_shown=_is_due_shown)
    page_claimed_at = time_column(
        "claimed_at", _("claimed at"), exactly=True, is_shown=lambda task: task.status == TaskStatus.CLAIMED
    )
    page_started_at = time_column("started_at", _("started at"), exactly=True, is_shown=_is_start_shown)
    page_finished_at = time_column("finished_at", _("finished at"), exactly=True)
    page_next_retry_at = time_column("next_retry_at", _("next retry at"), exactly=True, is_shown=_is_retrying)
    page_run_after = time_column(
        "run_after", _("run after"), exactly=True, is_shown=lambda task: task.run_after != task.enqueued_at
    )

    @admin.display(description=_("state"))
    def page_status(self, task: Any) -> SafeString:
        """The status, and what a pending task waits for."""
        return format_html('{} <span class="quiet">{}</span>', status_badge(task), wait_text(task, task.read_at))

    @admin.display(description=_("waits for"))
    def page_waits_for(self, task: Any) -> SafeString | str:
        """What a task that has begun waits for, since when, and until when at the latest."""
        if state_of(task, task.read_at) != State.AWAITING:
            return ""
        moments = ((gettext("since %s"), waits_since(task)), (gettext("until %s"), waits_until(task, task.read_at)))
        times = ", ".join(words % format_time(moment, exactly=False) for words, moment in moments if moment)
        return format_html('{} <span class="quiet">{}</span>', wait_link(task.waits_for, self.links), times)

    @admin.display(description=_("id"))
    def page_id(self, task: Task) -> SafeString:
        """The id, with a button that copies it."""
        button = copy_button(gettext("Copy the id"), text=task.pk)
        return format_html("<code>{}</code> {}", task.pk, button)

    @admin.display(description=_("task"))
    def page_name(self, task: Any) -> SafeString | str:
        """The page of its name, and the list of the tasks with this name."""
        tasks = self.links.to_list(Task, gettext("All tasks of this name"), task_name=task.task_name, kind="all")
        return format_html("{} · {}", self.links.to_task_name(task.task_name), tasks)

    @admin.display(description=_("queue"))
    def page_queue(self, task: Any) -> SafeString | str:
        """The queue, linked to its tasks, and whether it is paused."""
        link = self.links.to_list(Task, task.queue_name, queue_name=task.queue_name)
        return with_pause(link, task)

    @admin.display(description=_("attempts"))
    def page_attempts(self, task: Task) -> str:
        """Attempts made and allowed. ``Retry`` and operators may add attempts."""
        numbers = {"made": task.attempt, "allowed": max(task.attempt, task.max_retries + 1)}
        return gettext("%(made)d of %(allowed)d") % numbers

    @admin.display(description=_("backend"))
    def page_backend(self, task: Task) -> str:
        """The backend, if there are others."""
        return "" if {*task_backends.settings} == {task.backend} else task.backend

    @admin.display(description=_("timeout"))
    def page_timeout(self, task: Task) -> str:
        """The time limit of an attempt."""
        return format_duration(task.timeout)

    @admin.display(description=_("retention"))
    def page_retention(self, task: Task) -> str:
        """How long it is kept after each outcome, if its sender set that."""
        return describe_retention(task.retention, task.retention_by_state) or "-"

    @admin.display(description=_("limit"))
    def page_limit_key(self, task: Any) -> SafeString | str:
        """The limit key, linked to the limit, and whether the task waits for it or has one of its places."""
        if task.limit_key is None:
            return "-"
        has_place = not task.deferred and task.status in TASK_LIVE_STATES
        note = gettext("blocked") if task.blocked else gettext("has a place") if has_place else ""
        return format_html('{} <span class="quiet">{}</span>', self.links.to(Limit, task.limit_key), note)

    @admin.display(description=_("group"))
    def page_group(self, task: Task) -> SafeString | str:
        """The group key of its calls, and whether more calls may join."""
        if task.group_key is None:
            return ""
        is_open = task.status == TaskStatus.PENDING and task.claim == 0
        note = (
            gettext("Calls with this key are added until the task is first claimed.") if is_open else gettext("closed")
        )
        return format_html('{} <span class="quiet">{}</span>', task.group_key, note)

    @admin.display(description=_("unique"))
    def page_unique(self, task: Any) -> str:
        """Until when no other task may have its unique key."""
        if task.unique_key is None:
            return ""
        return describe_unique_until(task, task.read_at)

    @admin.display(description=_("worker"))
    def page_worker(self, task: Any) -> SafeString | str:
        """The worker that claimed it last."""
        if task.started_at is not None and not _is_start_shown(task):
            return ""
        return self.links.to(Worker, task.claimed_by_worker_id)

    @admin.display(description=_("host, process"))
    def page_process(self, task: Task) -> str:
        """The host and the process of the only attempt."""
        return process_of(latest_attempts(task)[-1]) if is_single_run(task) else ""

    @admin.display(description=_("wait time"))
    def page_wait(self, task: Any) -> str:
        """How long it has been due before it started, or so far. While its limit blocked it, it was not due."""
        if not _is_wait_shown(task):
            return ""
        end = task.started_at or task.finished_at
        return counted(task.read_at - task.due_at) if end is None else format_duration(end - task.due_at)

    @admin.display(description=_("run time"))
    def page_run(self, task: Any) -> str:
        """How long it ran, or has run so far."""
        if not _is_start_shown(task):
            return ""
        end = task.finished_at
        return counted(task.read_at - task.started_at) if end is None else format_duration(end - task.started_at)

    @admin.display(description=_("about"))
    def page_about(self, task: Task) -> SafeString | str:
        """The row that it is about, linked if the site has a page of it, and the list of the tasks about it."""
        if (row := task.about_row) is None:
            return ""
        tasks = self.links.to_list(Task, gettext("All tasks about this row"), about=str(row))
        return format_html("{} · {}", self._row(row), tasks)

    def _row(self, row: RowRef) -> SafeString | str:
        text, model = f"{row.model} {row.key}", model_of(row.model)
        if self.task.error_code == OutcomeCode.ABOUT_ROW_GONE:
            return format_html('{} <span class="quiet">{}</span>', text, gettext("deleted"))
        return text if model is None else self.links.to(model, row.key, text)

    @admin.display(description=_("workflow"))
    def page_workflow(self, task: Any) -> SafeString | str:
        """The workflow or batch that it is a task of, and its state."""
        if self.node is None:
            return ""
        workflow = self.node.workflow
        kind = gettext("batch") if workflow.is_batch else ""
        note = ", ".join(filter(None, (kind, str(workflow.get_status_display()) if workflow.status else "")))
        return format_html(
            '{} <span class="quiet">{}</span>', self.links.to(Workflow, workflow.pk, workflow.name), note
        )

    @admin.display(description=_("node"))
    def page_node_id(self, task: Any) -> SafeString | str:
        """The node of the workflow that it is."""
        node = self.node
        if node is None or node.pk is None:
            return ""
        if (url := self.links.url(Workflow, node.workflow_id, node=str(node.task_index))) is None:
            return node.node_id
        return format_html('<a href="{}#node">{}</a>', url, node.node_id)

    @admin.display(description=_("run again from"))
    def page_rerun_of(self, task: Any) -> SafeString | str:
        """The task that it is a new run of."""
        return self.links.to(Task, task.rerun_of_id)

    @admin.display(description=_("run again as"))
    def page_rerun_as(self, task: Any) -> SafeString | str:
        """The newest of the tasks that are new runs of it."""
        if task.finished_at is None:
            return ""
        rows = Task.objects.using(task._state.db).filter(rerun_of_id=task.pk).order_by("-rerun_of_id", "-id")
        keys = list(rows.values_list("pk", flat=True)[: MAX_LINKED + 1])
        shown = format_html_join(", ", "{}", ((self.links.to(Task, key),) for key in keys[:MAX_LINKED]))
        return format_html("{}, …", shown) if len(keys) > MAX_LINKED else shown

    @admin.display(description=_("schedule"))
    def page_schedule(self, task: Any) -> SafeString | str:
        """The schedule that sent it."""
        if task.schedule_id is None:
            return ""
        return schedule_link(task.schedule_id, task._state.db, self.links)

    @admin.display(description=_("scheduled for"))
    def page_scheduled_for(self, task: Task) -> str:
        """The schedule's slot that it runs for."""
        return format_time(contents_of(task).slot, exactly=False)

    @admin.display(description=_("progress"))
    def page_progress(self, task: Task) -> SafeString | str:
        """The progress that the task reported."""
        if task.progress is None:
            return ""
        return progress_bar(contents_of(task).mask.apply("progress", task.progress))

    @admin.display(description=_("grouped calls"))
    def page_items(self, task: Task) -> SafeString | str:
        """The calls that it receives as a list."""
        if task.item_count is None:
            return ""
        return format_items(task)

    @admin.display(description=_("result"))
    def page_result(self, task: Task) -> SafeString | str:
        """The result, without the traceback, which has a field of its own."""
        if contents_of(task).error:
            return ""
        return self._payload("result")

    @admin.display(description=_("retry policy"))
    def page_policy(self, task: Task) -> SafeString | str:
        """The retry policy in force, in words."""
        return describe_retry_policy(task)

    def _column(self, name: str) -> Any:
        """Return the value of a column that needs no method of its own."""
        if name in PARTS:
            return self._payload(name)
        value = getattr(self.task, name)
        return format_time(value) if isinstance(value, datetime) else value

    def _payload(self, part: str) -> SafeString | str:
        contents, address = contents_of(self.task), self.admin.page_url("download", self.task.pk, part)
        if not contents.is_filled(part):
            return ""
        shown = masked_json(part, contents.visible(part), contents.mask, contents.size(part), address)
        button = copy_button(gettext("Copy"), target=f"horsies-text-{part}", show_label=True)
        return format_html('<div class="horsies-copied">{}{}</div>', shown, button)


def _node_of(task: Task) -> WorkflowTask | None:
    """Return the node that a task is, with its workflow; None for a task of its own. A deleted node has no key."""
    if task.workflow_id is None:
        return None
    nodes = WorkflowTask.objects.using(task._state.db).filter(task=task.pk).select_related("workflow")
    columns = ("node_id", "task_index", "workflow__name", "workflow__status", "workflow__is_batch")
    gone = WorkflowTask(workflow=Workflow(pk=task.workflow_id, name=str(task.workflow_id), status=""))
    return nodes.only(*columns).first() or gone


#: Maximum number of gathered calls on a page.
MAX_ITEMS: Final = 50


def format_items(task: Task) -> SafeString | str:
    """Return the first calls of a task, masked like its arguments, and their total number."""
    items = TaskItem.objects.using(task._state.db).filter(task=task.pk).order_by("position")
    texts = items.values_list(Cast("kwargs", TextField()), flat=True)[:MAX_ITEMS]
    calls: list[Any] = [decode(text) for text in texts]
    shown = as_json(calls, contents_of(task).mask)
    if (task.item_count or 0) <= len(calls):
        return shown
    counts = {"shown": format_number(len(calls)), "count": format_number(task.item_count)}
    return format_html('{}<p class="horsies-more">{}</p>', shown, gettext("The first %(shown)s of %(count)s.") % counts)


_WORDS: Final[Mapping[UniqueUntil, Any]] = {
    UniqueUntil.STARTED: _("until it starts"),
    UniqueUntil.DONE: _("until it has finished"),
    UniqueUntil.SUCCESS: _("until it completes"),
    UniqueUntil.PERIOD: _("regardless of the outcome"),
}


def describe_unique_until(task: Task, now: datetime) -> str:
    """Return until when no other task may have its key, and whether that time is over."""
    until = UniqueUntil(task.unique_until or UniqueUntil.DONE)
    if until == UniqueUntil.RELEASED:
        return gettext("no longer: the key was released")
    words = str(_WORDS[until])
    if task.unique_expires_at is not None:
        words = gettext("%(rule)s, at most until %(time)s") % {
            "rule": words,
            "time": format_time(task.unique_expires_at),
        }
    is_past = task.unique_expires_at is not None and task.unique_expires_at <= now
    is_over = is_past or TaskStatus(task.status) not in HOLDING[until]
    return gettext("%s (no longer)") % words if is_over else words
