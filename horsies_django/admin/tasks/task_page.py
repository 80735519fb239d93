"""A task's page: all columns of its row, its timeline, its attempts, and why it is not running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.durations import format_duration
from ...core.status import TaskStatus
from ...db.now import Now
from ...models import Heartbeat, Task, TaskAttempt, Worker, Workflow, WorkflowTask
from ...ops.diagnosis import Reason, reasons_of
from ...ops.inspector.task_states import State, state_of
from ...ops.payload_view.contents import PARTS, contents_of, with_payload_texts
from ..formatting import format_time
from ..links import Links
from ..times import display_zone
from .attempts import attempt_rows, heartbeat_rows, latest_attempts, latest_heartbeats, own_traceback
from .fields import TaskFields
from .timeline import MAX_UNFOLDED, WIDTH, bars_of, steps_of

#: Fieldsets with this class refresh while the task is live.
LIVE_CLASS: Final = "horsies-live"

#: Columns that the page shows under another name.
_COLUMNS: Final = {
    "worker": "claimed_by_worker_id",
    "schedule": "schedule_id",
    "unique": "unique_key",
    "items": "item_count",
    "group": "group_key",
}

#: The fields that identify the task.
IDENTITY_FIELDS: Final = (
    "page_name",
    "page_queue",
    "page_priority",
    "page_attempts",
    "page_worker",
    "page_schedule",
    "page_scheduled_for",
)


class TaskPage(TaskFields):
    """The page of one task."""

    change_form_template = "admin/horsies_django/task_page.html"
    #: Empty fields are left out, except the first of each fieldset.
    fieldsets: ClassVar[Any] = (
        (
            _("State"),
            {"classes": (LIVE_CLASS,), "fields": ("page_status", "page_error", "page_progress", IDENTITY_FIELDS)},
        ),
        (_("Call"), {"fields": ("page_args", "page_kwargs", "page_items")}),
        (_("Result"), {"classes": (LIVE_CLASS,), "fields": ("page_result", "page_traceback")}),
        (
            _("Times"),
            {
                "classes": (LIVE_CLASS,),
                "fields": (
                    ("page_sent_at", "page_enqueued_at", "page_claimed_at", "page_started_at", "page_finished_at"),
                    ("page_next_retry_at", "page_run_after", "page_good_until", "page_kept_until"),
                ),
            },
        ),
        (
            _("Options"),
            {
                "classes": (LIVE_CLASS,),
                "fields": (
                    ("id", "backend", "page_kind", "page_claim", "page_timeout", "page_retention"),
                    ("unique_key", "page_unique", "page_group", "page_limit_key"),
                    "page_policy",
                    "page_metadata",
                    "page_checkpoint",
                ),
            },
        ),
    )

    class Media:
        js = ("horsies_django/live.js",)

    def get_urls(self) -> list[URLPattern]:
        """Add a URL for downloading each large value in full."""
        view = self.admin_site.admin_view(self.download_view)
        own = path("<path:object_id>/download/<slug:part>/", view, name=self._url_name("download"))
        return [own, *super().get_urls()]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out empty fields."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None:
            return fieldsets
        return [(name, {**options, "fields": self._filled(options["fields"], obj)}) for name, options in fieldsets]

    def _filled(self, lines: Any, task: Any) -> list[Any]:
        first, *rest = lines
        kept = [self._filled_line(line, task) for line in rest]
        return [self._filled_line(first, task) or first, *filter(None, kept)]

    def _filled_line(self, line: Any, task: Any) -> Any:
        if isinstance(line, str):
            return line if self._is_filled(line, task) else None
        return tuple(name for name in line if self._is_filled(name, task))

    def _is_filled(self, name: str, task: Any) -> bool:
        column = name.removeprefix("page_")
        if column in PARTS:
            return contents_of(task).is_filled(column)
        if column == "error":
            return bool(task.error_code or (task.retry_count and task.finished_at is None))
        if column == "traceback":
            return bool(own_traceback(task))
        if column == "policy":  # never empty
            return True
        if column == "next_retry_at":  # the row keeps it after the attempt has started
            return bool(state_of(task, task.read_at) == State.RETRYING)
        if column == "scheduled_for":
            return contents_of(task).slot is not None
        value = getattr(task, _COLUMNS.get(column, column), True)
        return value is not None and value != ""

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Return all fields."""
        return flatten_fieldsets(self.fieldsets)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """For the page, read the large columns as text, and the database's current time."""
        rows: QuerySet[Any] = super().get_queryset(request)
        match = request.resolver_match
        if match is None:
            return rows
        if match.url_name == self._url_name("change"):
            rows = with_payload_texts(rows, *PARTS).annotate(read_at=Now())
        if match.url_name == self._url_name("download"):
            rows = with_payload_texts(rows, *(PARTS.keys() & {str(match.kwargs.get("part"))}))
        return rows

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add everything that is not a field."""
        task = kwargs.get("obj")
        if task is not None:
            links = Links(self.admin_site, request)
            context |= self._page_context(task, links)
        return super().render_change_form(request, context, *args, **kwargs)

    def _page_context(self, task: Any, links: Links) -> dict[str, Any]:
        task.page_links = links
        reasons = reason_rows(task, task.read_at, links)
        attempts = latest_attempts(task)
        beats = [] if task.status == TaskStatus.PENDING else latest_heartbeats(task)
        links.load_existing(Worker, _workers(task, attempts, beats), task._state.db)
        steps = steps_of(task, attempts, task.read_at)
        return {
            "live": task.finished_at is None,
            "live_class": LIVE_CLASS,
            "reasons": reasons,
            "node": self._node(task, links),
            "zone": str(display_zone()),
            "steps": steps,
            "has_many_steps": len(steps) > MAX_UNFOLDED,
            "bars": bars_of(steps),
            "picture_width": WIDTH,
            "attempts": attempt_rows(task, links),
            "earlier_attempts": attempts[0].attempt - 1 if attempts else 0,
            "beats": heartbeat_rows(beats, task.read_at, links),
        }

    def _node(self, task: Task, links: Links) -> dict[str, Any] | None:
        """Return the workflow and the node that the task is, as links."""
        if task.workflow_id is None:
            return None
        nodes = WorkflowTask.objects.using(task._state.db).filter(task=task.pk).select_related("workflow")
        node = nodes.only("node_id", "workflow__name", "workflow__status").first()
        if node is None:
            return {"workflow": links.to(Workflow, task.workflow_id), "name": "-", "status": ""}
        workflow = node.workflow
        return {
            "workflow": links.to(Workflow, workflow.pk, f"{workflow.name} ({workflow.pk})"),
            "status": workflow.get_status_display(),
            "name": links.to(WorkflowTask, node.pk, node.node_id),
        }

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
    left: str
    links: SafeString


def reason_rows(task: Task, now: datetime, links: Links) -> list[ReasonRow]:
    """Return why a task is not running, the most immediate reason first."""
    return [_shown(reason, now, links) for reason in reasons_of(task, now)]


def _shown(reason: Reason, now: datetime, links: Links) -> ReasonRow:
    return ReasonRow(
        reason.code.value,
        reason.words,
        format_time(reason.when) if reason.when else "",
        _left(reason.when, now) if reason.when else "",
        format_html_join(", ", "{}", ((links.to(about.model, about.key, about.label),) for about in reason.about)),
    )


def _left(when: datetime, now: datetime) -> str:
    return (
        gettext("in %s") % format_duration(when - now)
        if when > now
        else gettext("%s ago") % format_duration(now - when)
    )
