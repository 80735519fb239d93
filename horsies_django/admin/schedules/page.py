"""A schedule's page: its state, its form, the next runs and its history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.forms.widgets import Media
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.mask import Mask, mask_of
from ...core.numbers import format_duration
from ...db.clock import database_now
from ...db.now import Now
from ...models import Schedule, Task, Workflow
from ..ages import relative_time
from ..base import queue_database
from ..formatting import as_json
from ..links import Links
from ..status_text import status_badge
from .columns import ScheduleColumns, format_moment, is_gone_from_code, is_late, state_badge
from .form import TIMING_FIELDS, Preview, preview_of, preview_of_form

#: Index of the timing fieldset; the next runs are shown below it.
WHEN_AT: Final = 1

#: The parameters with which the page asks for a preview.
_PREVIEWED: Final = " ".join(f"{name}_0 {name}_1" if name.endswith("_at") else name for name in TIMING_FIELDS)

#: Maximum number of runs on a page, and the columns that are read of each.
MAX_RUNS: Final = 20
_TIMES: Final = ("sent_at", "started_at", "completed_at", "cancelled_at")
_OF_TASK: Final = ("pk", "task_name", "status", "error_code", "failed_at", "expired_at", *_TIMES)
_OF_WORKFLOW: Final = ("pk", "name", "status", *_TIMES)


class SchedulePage(ScheduleColumns):
    """The page of one schedule."""

    change_form_template = "admin/horsies_django/schedule_change_form.html"
    fieldsets = (
        (None, {"fields": ("name", "task_name", "workflow_name", "args", "kwargs")}),
        (_("When"), {"fields": ("timing", "timezone", ("start_at", "end_at"), "skip_nonexistent")}),
        (_("Missed and overlapping runs"), {"fields": (("catch_up", "max_catch_up_runs"), "overlap", "jitter")}),
        (_("Options"), {"fields": ("options", "backend")}),
    )

    @property
    def media(self) -> Media:
        """Add the preview's script."""
        return super().media + Media(js=["horsies_django/preview.js"])

    # Preview of the next runs while editing.

    def get_urls(self) -> list[URLPattern]:
        """Add the preview's URLs, for new and for existing schedules."""
        view, name = self.admin_site.admin_view(self.preview_view), self._url_name("preview")
        own = [path("preview/", view, name=f"{name}_new"), path("<path:object_id>/preview/", view, name=name)]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest, object_id: str | None = None) -> HttpResponse:
        """Return the next runs for the posted timing, to users who may save it. Writes nothing."""
        schedule = None if object_id is None else self.get_object(request, unquote(object_id))
        if not self._can_edit(request, schedule):
            raise PermissionDenied
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        if schedule is None and object_id is not None:
            return self.not_found(request, object_id)
        now = database_now(queue_database() or DEFAULT_DB_ALIAS)
        form: Any = self.get_form(request, schedule, change=schedule is not None)(request.GET, instance=schedule)
        context = {"preview": preview_of_form(form, now)}
        answer = TemplateResponse(request, "admin/horsies_django/schedule_preview.html", context)
        answer.headers["Cache-Control"] = "private, no-store"
        return answer

    def _can_edit(self, request: HttpRequest, schedule: Any) -> bool:
        if schedule is None:
            return self.has_add_permission(request)
        return self.has_change_permission(request, schedule)

    # The page.

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add everything that is not part of the form."""
        schedule = kwargs.get("obj")
        context |= {"show_save_and_add_another": False, "when_at": WHEN_AT, "preview": Preview()}
        if schedule is not None:
            context |= self._page_context(request, schedule)
        if request.method == "POST":  # the form is shown again because it has errors
            now = database_now(queue_database() or DEFAULT_DB_ALIAS)
            context["preview"] = preview_of_form(context["adminform"].form, now)
        elif schedule is not None:
            context["preview"] = preview_of(schedule, schedule.read_at)
        if self._can_edit(request, schedule):
            name, key = f"{self.admin_site.name}:{self._url_name('preview')}", getattr(schedule, "pk", None)
            address = reverse(f"{name}_new") if key is None else reverse(name, args=[quote(key)])
            context |= {"preview_address": address, "preview_fields": _PREVIEWED}
        return super().render_change_form(request, context, *args, **kwargs)

    def _page_context(self, request: HttpRequest, schedule: Any) -> dict[str, Any]:
        return {
            "summary": self._summary(schedule),
            "notices": list(_notices(schedule, [action.label for action in self.allowed_actions(request)])),
            "history": history_of(schedule.pk, queue_database(), Links(self.admin_site, request)),
        }

    def _summary(self, schedule: Any) -> list[tuple[Any, Any]]:
        return [
            (_("state"), state_badge(schedule)),
            (_("next run"), format_moment(schedule.next_run_at if schedule.enabled else None, schedule.read_at)),
            (_("last run"), format_moment(schedule.last_run_at, schedule.read_at)),
            (_("total runs"), self.shown_count(schedule)),
        ]

    def _url_name(self, page: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{page}"

    # Read-only values.

    @admin.display(description=_("arguments"))
    def shown_args(self, schedule: Schedule) -> SafeString | str:
        """The positional arguments with sensitive values hidden."""
        mask = _mask_of(schedule)
        return as_json(mask.apply_to_args(schedule.args), mask)

    @admin.display(description=_("keyword arguments"))
    def shown_kwargs(self, schedule: Schedule) -> SafeString | str:
        """The keyword arguments with sensitive values hidden."""
        mask = _mask_of(schedule)
        return as_json(mask.apply_to_kwargs(schedule.kwargs), mask)

    @admin.display(description=_("options"))
    def shown_options(self, schedule: Schedule) -> SafeString | str:
        """The options with sensitive values hidden."""
        return as_json(schedule.options, _mask_of(schedule))


def _mask_of(schedule: Schedule) -> Mask:
    return mask_of(schedule.task_name) if schedule.task_name else Mask()


def _notices(schedule: Any, actions: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield notices with their levels: problems that need attention, and why the schedule can't be edited.

    ``actions`` are the labels of the actions that this user may use.
    """
    if is_gone_from_code(schedule):
        gone = gettext("It was removed from the code of %(source)s and no longer runs by itself.")
        yield "info", gone % {"source": schedule.source}
    elif schedule.source:
        where = gettext("Defined in code (%(source)s); edit it there.") % {"source": schedule.source}
        allowed = gettext("Allowed here: %s.") % ", ".join(map(str, actions)) if actions else ""
        yield "info", f"{where} {allowed}".rstrip()
    if is_late(schedule):
        late = gettext("It is overdue: no scheduler has run it. Start a worker without --no-scheduler, or %(command)s")
        yield "warning", late % {"command": "python manage.py horsies_scheduler"}
    if schedule.last_error:
        yield "error", gettext("The latest run could not be enqueued: %(error)s") % {"error": schedule.last_error}


# The tasks and workflows that it has sent, newest first.


def history_of(key: int, database: str | None, links: Links) -> dict[str, Any]:
    """Return the newest runs, links to all of them, and whether some are hidden from this user.

    Takes two indexed statements.
    """
    runs: list[dict[str, Any]] = []
    lists: list[SafeString | str] = []
    if links.can_view(Task):
        tasks = _newest(Task.objects.using(database).only(*_OF_TASK), key)
        runs += (_run(links, task, task.task_name, task.finished_at) for task in tasks)
        lists.append(links.to_list(Task, gettext("All tasks of this schedule"), schedule_id=str(key), kind="all"))
    if links.can_view(Workflow):
        rows = Workflow.objects.using(database).only(*_OF_WORKFLOW).annotate(error_code=KT("error__error_code"))
        workflows = [_run(links, row, row.name, row.completed_at or row.cancelled_at) for row in _newest(rows, key)]
        if workflows:
            lists.append(links.to_list(Workflow, gettext("All workflows of this schedule"), schedule_id=str(key)))
        runs += workflows
    runs.sort(key=lambda run: run["sent_at"], reverse=True)
    is_hidden = not (links.can_view(Task) and links.can_view(Workflow))
    return {"runs": runs[:MAX_RUNS], "all": lists, "is_hidden": is_hidden}


def _newest(rows: QuerySet[Any], key: int) -> QuerySet[Any]:
    runs: QuerySet[Any] = rows.filter(schedule_id=key).annotate(read_at=Now())
    return runs.order_by("-schedule_id", "-pk")[:MAX_RUNS]


def _run(links: Links, row: Any, name: str, ended: datetime | None) -> dict[str, Any]:
    return {
        "sent_at": row.sent_at,
        "link": links.to(type(row), row.pk, name),
        "badge": status_badge(row),
        "error_code": row.error_code or "",
        "sent": relative_time(row.sent_at, row.read_at),
        "took": format_duration((ended or row.read_at) - row.started_at) if row.started_at else "-",
    }
