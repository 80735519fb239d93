"""A task's page: all columns of its row, its timeline, its attempts, and why it is not running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib.admin.utils import label_for_field, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.results import OperationalCode
from ...db.now import Now
from ...models import Heartbeat, Task, TaskAttempt, Worker, Workflow, WorkflowTask
from ...ops.diagnosis import Reason, RelatedRow, reasons_of
from ...ops.diagnosis.not_retried import why_not_retried
from ...ops.diagnosis.reason import HELD_FOR, and_more
from ...ops.payload_view.contents import PARTS, contents_of, error_data, with_payload_texts
from ..ages import counted, relative_time
from ..copy_button import COPY_CSS, COPY_JS
from ..errors.rows import same_error_link
from ..formatting import download_note, format_time, masked_json, text_block
from ..links import Links
from .attempts import (
    MAX_MESSAGE,
    WIDTH,
    attempt_rows,
    error_of,
    heartbeat_rows,
    latest_attempts,
    latest_heartbeats,
    timeline,
)
from .columns import IS_QUEUE_PAUSED
from .fields import TaskFields
from .run_again import URL_NAME, linked_tasks

#: The id of the block with the traceback at the top of the page.
TRACEBACK: Final = "horsies-traceback-text"

#: Fields in the whole width of the page.
_WIDE: Final = frozenset({"page_policy", "page_unique", "page_metadata", "page_checkpoint", "page_items"})


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading, and its fields. With ``is_live``, it is refreshed while the task is live."""

    key: str
    title: Any
    names: tuple[str, ...]
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class PageField:
    """A field with a value."""

    name: str
    label: str
    value: Any
    is_wide: bool


STATE: Final = Section(
    "state",
    _("State and times"),
    (
        "page_status",
        "page_attempts",
        "page_progress",
        "page_sent_at",
        "page_enqueued_at",
        "page_next_retry_at",
        "page_claimed_at",
        "page_started_at",
        "page_finished_at",
        "page_good_until",
        "page_wait",
        "page_run",
        "page_queue",
        "priority",
        "page_worker",
        "page_process",
        "page_workflow",
        "page_node_id",
        "page_schedule",
        "page_scheduled_for",
        "page_rerun_of",
        "page_rerun_as",
        "page_id",
    ),
)
ARGUMENTS: Final = Section("arguments", _("Call"), ("page_args", "page_kwargs", "page_items"), is_live=False)
RESULT: Final = Section("result", _("Result"), ("page_result",))
OPTIONS: Final = Section(
    "options",
    _("Options"),
    (
        "page_policy",
        "page_timeout",
        "page_retention",
        "page_kept_until",
        "page_run_after",
        "page_limit_key",
        "unique_key",
        "page_unique",
        "page_group",
        "page_backend",
        "page_name",
        "page_metadata",
        "page_checkpoint",
    ),
)


class TaskPage(TaskFields):
    """The page of one task. It renders its sections itself; Django's form is empty."""

    change_form_template = "admin/horsies_django/task_page.html"
    fieldsets: ClassVar[Any] = ((None, {"fields": ()}),)

    class Media:
        css: ClassVar[Any] = {"all": [*COPY_CSS["all"], "horsies_django/task.css"]}
        js = ("horsies_django/live.js", *COPY_JS)

    def get_urls(self) -> list[URLPattern]:
        """Add a URL for downloading each large value in full."""
        view = self.admin_site.admin_view(self.download_view)
        own = path("<path:object_id>/download/<slug:part>/", view, name=self._url_name("download"))
        return [own, *super().get_urls()]

    def _fields(self, section: Section, task: Any) -> list[PageField]:
        """Return the fields of a section that have a value."""
        values = {name: getattr(self, name, lambda row, name=name: getattr(row, name))(task) for name in section.names}
        return [
            PageField(name, str(label_for_field(name, self.model, self)), value, name in _WIDE)
            for name, value in values.items()
            if value not in (None, "", "-", 0)
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """For the page, read the large columns as text, and the database's current time."""
        rows: QuerySet[Any] = super().get_queryset(request)
        match = request.resolver_match
        if match is None:
            return rows
        if match.url_name == self._url_name("change"):
            rows = with_payload_texts(rows, *PARTS).annotate(read_at=Now(), is_queue_paused=IS_QUEUE_PAUSED)
        if match.url_name == URL_NAME:
            rows = with_payload_texts(rows, "args", "kwargs")
        if match.url_name == self._url_name("download"):
            rows = with_payload_texts(rows, *(PARTS.keys() & {str(match.kwargs.get("part"))}))
        return rows

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the sections."""
        task = kwargs.get("obj")
        if task is not None:
            links = Links(self.admin_site, request)
            context |= self._page_context(task, links)
        return super().render_change_form(request, context, *args, **kwargs)

    def page_title(self, row: Any) -> str:
        """Return the task's name; its id is a field."""
        return str(row.task_name)

    def _page_context(self, task: Any, links: Links) -> dict[str, Any]:
        task.page_links = links
        task.page_node = _node_of(task)
        task.page_reruns = linked_tasks(task, links) if task.finished_at is not None else ""
        attempts = latest_attempts(task)
        beats = latest_heartbeats(task) if _has_relevant_beats(task) else []
        links.load_existing(Worker, _workers(task, attempts, beats), task._state.db)
        bars, legend = timeline(task, attempts)
        return {
            "live": task.finished_at is None,
            "error": self._error(task, attempts, links),
            "reasons": [_reason_row(task, reason, links) for reason in reasons_of(task, task.read_at)],
            "sections": {
                section.key: {"title": section.title, "fields": self._fields(section, task), "is_live": section.is_live}
                for section in (STATE, ARGUMENTS, RESULT, OPTIONS)
            },
            "zone": str(get_current_timezone()),
            "bars": bars,
            "legend": legend,
            "width": WIDTH,
            "attempts": attempt_rows(task, links),
            "earlier_attempts": attempts[0].attempt - 1 if attempts else 0,
            "max_message": MAX_MESSAGE,
            "beats": heartbeat_rows(beats, task.read_at, links),
        }

    def _error(self, task: Any, attempts: Sequence[TaskAttempt], links: Links) -> dict[str, Any] | None:
        """Return the error at the top of the page, and why the task was not retried."""
        error = error_of(task)
        if error is None:
            return None
        last = attempts[-1] if attempts else None
        return {
            "text": error,
            "more": self._message_note(task, error.message),
            "data": self._error_data(task),
            "attempt": last.attempt if last is not None and task.finished_at is None else None,
            "traceback": text_block(error.traceback, end=True, key=TRACEBACK) if error.traceback else "",
            "traceback_key": TRACEBACK,
            "same_error": same_error_link(task.fingerprint, links),
            "not_retried": why_not_retried(task, last if last is None or last.attempt == task.attempt else None),
        }

    def _message_note(self, task: Task, message: str) -> SafeString | str:
        """Return a link to the whole result if the message of a failed task is too long for the page."""
        if len(message) <= MAX_MESSAGE or task.finished_at is None:
            return ""
        return download_note(MAX_MESSAGE, len(message), self._download_url(task, "result"))

    def _error_data(self, task: Task) -> SafeString | str:
        """Return the data of the error of a failed task, masked; the download of its result has all of it."""
        contents = contents_of(task)
        if contents.error.get("data") is None:
            return ""
        data = error_data(contents.stored("result"), contents.mask)
        address = self._download_url(task, "result")
        return masked_json("error-data", data, contents.mask, contents.size("result"), address)

    def download_view(self, request: HttpRequest, object_id: str, part: str) -> HttpResponse:
        """Return a whole value as plain text, masked as on the page."""
        if part not in PARTS:
            raise Http404(gettext("A task has no %(name)s.") % {"name": part})
        task = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, task):
            raise PermissionDenied
        if task is None:
            return self.not_found(request, object_id)
        return HttpResponse(
            contents_of(task).text(part),
            content_type="text/plain; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="{task.pk}-{part}.txt"',
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "private, no-store",
            },
        )


def _node_of(task: Task) -> WorkflowTask | None:
    """Return the node that a task is, with its workflow; None for a task of its own. A deleted node has no key."""
    if task.workflow_id is None:
        return None
    nodes = WorkflowTask.objects.using(task._state.db).filter(task=task.pk).select_related("workflow")
    columns = ("node_id", "workflow__name", "workflow__status", "workflow__is_batch")
    gone = WorkflowTask(workflow=Workflow(pk=task.workflow_id, name=str(task.workflow_id), status=""))
    return nodes.only(*columns).first() or gone


def _has_relevant_beats(task: Task) -> bool:
    """Return whether heartbeats tell something: the task is held, or its worker crashed."""
    return task.claimed or task.error_code == OperationalCode.WORKER_CRASHED


def _workers(task: Task, attempts: Sequence[TaskAttempt], beats: Sequence[Heartbeat]) -> set[str]:
    """Return the ids of all workers that the page names."""
    named = {attempt.worker_id for attempt in attempts} | {beat.sender_id for beat in beats}
    return {*named, task.claimed_by_worker_id or ""} - {""}


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """A reason on a page."""

    code: str
    words: str
    when: str
    left: SafeString | str
    links: SafeString


def _reason_row(task: Any, reason: Reason, links: Links) -> ReasonRow:
    now = task.read_at
    about = [_related(row, now, links) for row in reason.about]
    about += [and_more(reason.more)] if reason.more else []
    is_on_page = reason.when in (task.enqueued_at, task.good_until)  # in the section of the state
    return ReasonRow(
        reason.code.value,
        reason.words,
        format_time(reason.when) if reason.when and not is_on_page else "",
        relative_time(reason.when, now) if reason.when else "",
        format_html_join(", ", "{}", ((row,) for row in about)),
    )


def _related(row: RelatedRow, now: datetime, links: Links) -> SafeString | str:
    """Return a row that a reason names, linked, and for how long it has held a limit."""
    link = links.to(row.model, row.key, row.label)
    if row.since is None:
        return link
    words = format_html(str(HELD_FOR), status=row.status, duration=counted(now - row.since))
    return format_html('{} <span class="quiet">{}</span>', link, words)
