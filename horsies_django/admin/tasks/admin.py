"""The admin of tasks: the list and its search."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from ...db.now import Now
from ...models import Workflow
from ...ops.keyset.scan import KeysetScan, Page
from ...ops.payload_view.contents import PARTS
from ...ops.payload_view.excerpt import with_short_arguments
from ..actions.admin_action import AdminAction
from ..copy_button import COPY_CSS, COPY_JS
from ..lists import search
from ..lists.changelist import KeysetChangeList
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
from ..lists.search import Search
from ..lists.search_messages import SearchMessages
from ..lists.sent_filter import SentFilter
from ..lists.time_filters import AttemptsFilter, DueFilter, RanFilter, WaitedFilter
from ..task_names.pages import TaskNamePages
from .move_form import MoveForm
from .task_actions import TASK_ACTIONS
from .task_page import TaskPage


class TaskAdmin(SearchMessages, TaskNamePages, TaskPage):
    """Lists all tasks and offers an operator's actions on them."""

    list_display = (
        "shown_states",
        "shown_name",
        "error_code",
        "shown_call",
        "shown_due",
        "shown_wait",
        "shown_run",
        "shown_attempts",
        "queue_name",
        "priority",
        "shown_progress",
        "shown_worker",
        "shown_workflow",
        "shown_sent",
        "shown_ended",
        "shown_id",
    )
    list_display_links = ("shown_name",)
    change_list_template = "admin/horsies_django/keyset_change_list.html"
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
        css = {"all": [*COPY_CSS["all"], "horsies_django/filters.css"]}
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
        page = KeysetScan(rows, scope, searched.bounds, searched.row_filter, searched.max_filtered).page()
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


class TaskChangeList(KeysetChangeList):
    """Adds the URL of its workflow and the database's current time to each task."""

    def parse_search(self, text: str) -> Search:
        """Parse ids, parts of names, and qualifiers such as ``error:text``."""
        return search.parse_search(text)

    @cached_property
    def page(self) -> Page:
        """The page's rows with what its columns need."""
        rows = with_short_arguments(self.queryset.annotate(seen_at=Now()))
        page = replace(self.scan, rows=rows).page(before=self.before, after=self.after)
        for row in page.rows:
            row.workflow_address = self._workflow_url(row.workflow_id)
        return page

    @cached_property
    def _can_view_workflows(self) -> bool:
        site = self.model_admin.admin_site
        if not site.is_registered(Workflow):
            return False
        allowed: bool = site.get_model_admin(Workflow).has_view_permission(self.request)
        return allowed

    def _workflow_url(self, key: UUID | None) -> str:
        if key is None or not self._can_view_workflows:
            return ""
        try:
            return reverse(f"{self.model_admin.admin_site.name}:horsies_django_workflow_change", args=[key])
        except NoReverseMatch:
            return ""
