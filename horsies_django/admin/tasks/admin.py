"""The admin of tasks: the list and its search."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import Task
from ...ops.payload_view.contents import PARTS
from ..actions.admin_action import AdminAction
from ..copy_button import COPY_CSS, COPY_JS
from ..lists import search
from ..lists.name_filters import ErrorFilter, QueueFilter, TaskFilter
from ..lists.task_filters import (
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
    WorkerFilter,
)
from ..lists.time_filters import EndedFilter, SentFilter
from .changelist import HELD_STATES, TaskChangeList
from .task_actions import CANCEL_RUNNING, TASK_ACTIONS, MoveForm
from .task_name_pages import TaskNamePages
from .task_page import TaskPage


class TaskAdmin(search.SearchAdmin, TaskNamePages, TaskPage):
    """Lists all tasks and offers an operator's actions on them."""

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
    )
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("task_name",)
    search_help_text = search.HELP
    admin_actions = TASK_ACTIONS

    class Media:
        css = {"all": [*COPY_CSS["all"], "horsies_django/filters.css", "horsies_django/lists.css"]}
        js = (*COPY_JS, "horsies_django/live_list.js")

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
        """Defer large columns until a page shows them."""
        rows = super().get_queryset(request).defer(*PARTS)
        return rows.defer("retry_policy") if search.is_list(request) else rows

    def parse_search(self, text: str, database: str) -> search.Search:
        """Parse an id, a part of a name, or a qualifier such as ``error:text``."""
        return search.parse_search(text)

    def _action_form(self, action: AdminAction, request: HttpRequest, rows: QuerySet[Any]) -> Form | None:
        """Fill in the form's current values if one task is moved."""
        form = super()._action_form(action, request, rows)
        if isinstance(form, MoveForm) and not _is_across(request):
            form.show_current(rows)
        return form

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        """Return the change list that pages by keyset."""
        return TaskChangeList


def _is_across(request: HttpRequest) -> bool:
    return request.POST.get("select_across", "0") not in ("", "0")
