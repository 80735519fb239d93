"""The admin of tasks: the list and its search."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest

from ...ops.keyset.scan import KeysetScan
from ...ops.payload_view.contents import PARTS
from ..actions.admin_action import AdminAction
from ..copy_button import COPY_CSS, COPY_JS
from ..lists import search
from ..lists.ended_filter import EndedFilter
from ..lists.error_group_filter import ErrorGroupFilter
from ..lists.filters import (
    KindFilter,
    ProblemFilter,
    StateFilter,
    WorkerFilter,
)
from ..lists.limit_filter import LimitFilter
from ..lists.name_filters import ErrorFilter, QueueFilter, TaskFilter
from ..lists.priority_filter import PriorityFilter
from ..lists.schedule_filter import ScheduleFilter
from ..lists.search_messages import SearchMessages
from ..lists.sent_filter import SentFilter
from ..lists.time_filters import AttemptsFilter, DueFilter, RanFilter, WaitedFilter
from .changelist import TaskChangeList
from .move_form import MoveForm
from .task_actions import TASK_ACTIONS
from .task_name_pages import TaskNamePages
from .task_page import TaskPage


class TaskAdmin(SearchMessages, TaskNamePages, TaskPage):
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
        js = COPY_JS

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer large columns until a page shows them."""
        rows = super().get_queryset(request).defer(*PARTS)
        return rows.defer("retry_policy") if _is_list(request) else rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search by ids, parts of names, and qualifiers.

        The change list scans the returned rows and applies the search's row filter. Elsewhere, such as in a project's
        autocomplete field, one page of such a scan is searched.
        """
        if search.is_unreadable(request):
            return queryset.none(), False
        searched = search.parse_search(search_term)
        rows = searched.apply(queryset)
        if _is_list(request):
            return rows, False
        scope = searched.narrow(searched.scope)
        page = KeysetScan(rows, scope, searched.bounds, searched.row_filter).page()
        return queryset.filter(pk__in=[row.pk for row in page.rows]), False

    def _action_form(self, action: AdminAction, request: HttpRequest, rows: QuerySet[Any]) -> Form | None:
        """Fill in the form's current values if one task is moved."""
        form = super()._action_form(action, request, rows)
        if isinstance(form, MoveForm) and not _is_across(request):
            form.show_current(rows)
        return form

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        """Return the change list that pages by keyset."""
        return TaskChangeList


def _is_list(request: HttpRequest) -> bool:
    return request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_changelist")


def _is_across(request: HttpRequest) -> bool:
    return request.POST.get("select_across", "0") not in ("", "0")
