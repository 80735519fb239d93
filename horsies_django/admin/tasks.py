"""The task browser."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..models import Task
from .filters import PriorityFilter, QueueFilter, StateFilter
from .readable import moment, progress_bar
from .task_page import TaskPage
from .task_verbs import TASK_VERBS


class TaskAdmin(TaskPage):
    """Shows every task; retries and cancels for those who may."""

    list_display = (
        "task_name",
        "shown_status",
        "shown_progress",
        "queue_name",
        "priority",
        "shown_attempts",
        "error_code",
        "shown_enqueued_at",
        "shown_started_at",
        "shown_finished_at",
    )
    list_filter = ("status", StateFilter, QueueFilter, PriorityFilter)
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("task_name",)
    search_help_text = _("An id, or the beginning of a task's name.")
    verbs = TASK_VERBS

    shown_enqueued_at = moment("enqueued_at", _("may run from"))
    shown_started_at = moment("started_at", _("started at"))
    shown_finished_at = moment("finished_at", _("finished at"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Leave the large columns where they are until a page shows them."""
        rows = super().get_queryset(request)
        is_list = request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_changelist")
        return rows.defer("args", "kwargs", "result", "retry_policy", "metadata", "checkpoint") if is_list else rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by primary key if the term is an id, by the beginning of the name otherwise."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(pk=UUID(term)), False
        except ValueError:
            return queryset.filter(task_name__startswith=term), False

    # Columns.

    @admin.display(description=_("status"))
    def shown_status(self, task: Task) -> SafeString:
        """The status, by word and by class."""
        return format_html(
            '<span class="horsies-status horsies-status-{}">{}</span>', task.status.lower(), task.get_status_display()
        )

    @admin.display(description=_("attempts"))
    def shown_attempts(self, task: Task) -> str:
        """Attempts made, of those allowed; a body that asks for another, and a person, may make more of them."""
        return f"{task.attempt}/{max(task.attempt, task.max_retries + 1)}"

    @admin.display(description=_("progress"))
    def shown_progress(self, task: Task) -> SafeString | str:
        """How far the body says it is: a bar where it knows the whole, and its words."""
        return progress_bar(task.progress)
