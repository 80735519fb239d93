"""The admin of tasks: the list and its search, and the URLs of its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...db.now import Now
from ...models import Task
from ..actions.action_admin import ActionAdmin, Button
from ..actions.admin_action import AdminAction
from ..base import is_read_only
from ..formatting import COPY_CSS, COPY_JS
from ..links import Links
from ..lists.name_filters import ErrorFilter, QueueFilter, TaskFilter
from ..lists.search_admin import SearchAdmin
from ..lists.task_filters import (
    AboutFilter,
    AttemptsFilter,
    DueFilter,
    ErrorGroupFilter,
    KindFilter,
    LimitFilter,
    PriorityFilter,
    ProblemFilter,
    RanFilter,
    ScheduleFilter,
    StateFilter,
    WaitedFilter,
    WaitsForFilter,
    WorkerFilter,
)
from ..lists.time_filters import EndedFilter, SentFilter
from .columns import HELD_STATES, IS_QUEUE_PAUSED, TaskColumns
from .task_actions import CANCEL_RUNNING, RETRY, TASK_ACTIONS, MoveForm, TaskEventForm

if TYPE_CHECKING:
    from ..lists.search import Search
    from .changelist import TaskChangeList


class TaskAdmin(TaskColumns, SearchAdmin, ActionAdmin):
    """Lists all tasks, offers an operator's actions on them, and hands over to the pages of a task and of a name.

    A page's module is imported when the page is first opened.
    """

    list_display = ("shown_state", "shown_name", "shown_call", "shown_run", "shown_place", "shown_id")
    list_display_links = ("shown_name",)
    change_list_template = "admin/horsies_django/two_line_change_list.html"
    list_filter = (
        StateFilter,
        ProblemFilter,
        KindFilter,
        SentFilter,
        EndedFilter,
        DueFilter,
        WaitedFilter,
        RanFilter,
        AttemptsFilter,
        QueueFilter,
        PriorityFilter,
        TaskFilter,
        ErrorFilter,
        ErrorGroupFilter,
        WorkerFilter,
        ScheduleFilter,
        LimitFilter,
        WaitsForFilter,
        AboutFilter,
    )
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("task_name",)
    search_help_text = _(
        "An id, part of a task name, state:failed, queue:emails, error:text, args.order.id:42, "
        'args.shop:"North side", metadata.tenant:acme. Several terms must all match.'
    )
    admin_actions = TASK_ACTIONS

    change_form_template = "admin/horsies_django/task_page.html"
    fieldsets: ClassVar[Any] = ((None, {"fields": ()}),)  # the page renders its sections itself

    class Media:
        css: ClassVar[Any] = {
            "all": [
                *COPY_CSS["all"],
                "horsies_django/filters.css",
                "horsies_django/lists.css",
                "horsies_django/task.css",
            ]
        }
        js = ("horsies_django/live.js", *COPY_JS, "horsies_django/live_list.js")

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of names, the page that runs a task again, and the downloads of large values."""
        view, name = self.admin_site.admin_view, self.page_name
        return [
            path("names/", view(self.names_view), name=name("names")),
            path("names/<path:task_name>/", view(self.name_view), name=name("name")),
            path("<path:object_id>/run-again/", view(self.run_again_view), name=name("run_again")),
            path("<path:object_id>/download/<slug:part>/", view(self.download_view), name=name("download")),
            *super().get_urls(),
        ]

    def get_list_display(self, request: HttpRequest) -> Any:
        """Add a button that cancels a task to the tabs of held tasks."""
        is_held = request.GET.get("state") in HELD_STATES
        may_cancel = is_held and CANCEL_RUNNING.is_allowed(request, self.model)
        return (*self.list_display, "shown_cancel") if may_cancel else self.list_display

    @admin.display(description=_("cancel"))
    def shown_cancel(self, task: Task) -> SafeString:
        """A button that asks whether to cancel a task, on the tabs of held tasks."""
        words = format_html('{}<span class="horsies-unseen"> {}</span>', gettext("Cancel"), task.task_name)
        return format_html('<a class="button" href="{}">{}</a>', self.action_url(task.pk, CANCEL_RUNNING), words)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer large columns until a page shows them, and read those that it shows as text."""
        from ...ops.payload_view.contents import PARTS, with_payload_texts

        rows: QuerySet[Any] = super().get_queryset(request).defer(*PARTS)
        match = request.resolver_match
        page = "" if match is None else str(match.url_name).removeprefix(self.page_name(""))
        if page == "changelist":
            rows = rows.defer("retry_policy")
        if page == "change":
            rows = with_payload_texts(rows, *PARTS).annotate(read_at=Now(), is_queue_paused=IS_QUEUE_PAUSED)
        if page == "run_again":
            rows = with_payload_texts(rows, "args", "kwargs")
        if match is not None and page == "download":
            rows = with_payload_texts(rows, *(PARTS.keys() & {str(match.kwargs.get("part"))}))
        return rows

    def parse_search(self, text: str, database: str) -> Search:
        """Parse an id, a part of a name, or a qualifier such as ``error:text``."""
        from ..lists.search import parse_search

        return parse_search(text)

    def _action_form(self, action: AdminAction, request: HttpRequest, rows: QuerySet[Any]) -> Form | None:
        """Fill in the current values if one task is moved, and what the tasks wait for if an event is sent."""
        form = super()._action_form(action, request, rows)
        if isinstance(form, MoveForm | TaskEventForm) and not _is_across(request):
            form.show_current(rows)
        return form

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        """Return the change list that pages by keyset."""
        from .changelist import TaskChangeList

        return TaskChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Link the list of names from the list of tasks."""
        names_url = Links(self.admin_site, request).task_names_url()
        return super().changelist_view(request, {"names_url": names_url, **(extra_context or {})})

    # The pages.

    def page_title(self, row: Any) -> str:
        """Return the task's name; its id is a field."""
        return str(row.task_name)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the sections."""
        from .task_page import TaskPage

        if (task := kwargs.get("obj")) is not None:
            context |= TaskPage(self, task, Links(self.admin_site, request)).context()
        return super().render_change_form(request, context, *args, **kwargs)

    def buttons_of(self, request: HttpRequest, row: Any) -> list[Button]:
        """Add *Run again* after *Retry*, if the task can be run again."""
        from ...ops.inspector.run_again import why_not_run_again

        buttons = super().buttons_of(request, row)
        if row is not None and _may_run_again(request) and not why_not_run_again(row):
            after_retry = 1 if RETRY.label in [button.label for button in buttons] else 0
            buttons.insert(after_retry, Button(_("Run again…"), self.page_url("run_again", row.pk), is_link=True))
        return buttons

    def run_again_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form, or send the new task and open its page."""
        from .run_again import RunAgain

        task = self.get_object(request, unquote(object_id))
        if not (self.has_view_permission(request, task) and _may_run_again(request)):
            raise PermissionDenied
        return self.not_found(request, object_id) if task is None else RunAgain(self, request, task).response()

    def download_view(self, request: HttpRequest, object_id: str, part: str) -> HttpResponse:
        """Return a whole value, or all output, as plain text."""
        from ...ops.payload_view.contents import PARTS
        from .task_page import download

        if part not in (*PARTS, "output"):
            raise Http404(gettext("A task has no %(name)s.") % {"name": part})
        task = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, task):
            raise PermissionDenied
        return self.not_found(request, object_id) if task is None else download(task, part)

    def names_view(self, request: HttpRequest) -> HttpResponse:
        """Show the list of names."""
        from .task_name_pages import names_page

        if not self.has_view_permission(request):
            raise PermissionDenied
        return names_page(self, request)

    def name_view(self, request: HttpRequest, task_name: str) -> HttpResponse:
        """Show the page of one name. Users who may view tasks may view it."""
        from .task_name_pages import name_page

        if not self.has_view_permission(request):
            raise PermissionDenied
        return name_page(self, request, task_name)


def _may_run_again(request: HttpRequest) -> bool:
    return not is_read_only() and request.user.has_perm("horsies_django.rerun_task")


def _is_across(request: HttpRequest) -> bool:
    return request.POST.get("select_across", "0") not in ("", "0")
