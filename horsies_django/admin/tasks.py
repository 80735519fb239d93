"""The task browser."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.utils import flatten, flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..models import Task, TaskAttempt
from .acting import ActingAdmin
from .base import AnyStackedInline, queue_database
from .filters import PriorityFilter, QueueFilter, StateFilter
from .readable import as_json, block, moment, progress_bar
from .task_verbs import TASK_VERBS


class AttemptInline(AnyStackedInline):
    """Each attempt with its traceback."""

    model = TaskAttempt
    extra = 0
    can_delete = False
    ordering = ("attempt",)
    fields = (
        ("outcome", "will_retry", "shown_started_at", "shown_finished_at"),
        ("error_code", "error_message"),
        "shown_traceback",
        ("worker_id", "hostname", "pid"),
    )
    readonly_fields = flatten(fields)

    shown_started_at = moment("started_at", _("started at"))
    shown_finished_at = moment("finished_at", _("finished at"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the queue's own database."""
        return super().get_queryset(request).using(queue_database())

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody adds an attempt by hand."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may see a task may see what became of it."""
        return request.user.has_perm("horsies_django.view_task")

    @admin.display(description=_("traceback"))
    def shown_traceback(self, attempt: TaskAttempt) -> SafeString | str:
        """The traceback, as it stands."""
        return block(attempt.traceback)


class TaskAdmin(ActingAdmin):
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
    inlines = (AttemptInline,)
    fieldsets = (
        (None, {"fields": ("id", "task_name", ("shown_status", "queue_name", "priority", "shown_attempts"))}),
        (_("Call"), {"fields": ("shown_args", "shown_kwargs")}),
        (_("Outcome"), {"fields": ("shown_progress", "shown_result", "error_code", "shown_traceback")}),
        (
            _("Times"),
            {
                "fields": (
                    ("shown_sent_at", "shown_enqueued_at", "shown_claimed_at"),
                    ("shown_started_at", "shown_finished_at"),
                    ("shown_next_retry_at", "shown_good_until", "shown_kept_until"),
                )
            },
        ),
        (_("Held by"), {"fields": (("claimed_by_worker_id", "claim"),)}),
        (
            _("Options"),
            {
                "fields": (
                    "backend",
                    "shown_policy",
                    ("timeout", "retention", "unique_key"),
                    "shown_metadata",
                    "shown_checkpoint",
                )
            },
        ),
    )

    shown_sent_at = moment("sent_at", _("sent at"))
    shown_enqueued_at = moment("enqueued_at", _("may run from"))
    shown_claimed_at = moment("claimed_at", _("claimed at"))
    shown_started_at = moment("started_at", _("started at"))
    shown_finished_at = moment("finished_at", _("finished at"))
    shown_next_retry_at = moment("next_retry_at", _("next retry at"))
    shown_good_until = moment("good_until", _("good until"))
    shown_kept_until = moment("kept_until", _("kept until"))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Return every field that a page shows."""
        return flatten_fieldsets(self.fieldsets)

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

    @admin.display(description=_("checkpoint"))
    def shown_checkpoint(self, task: Task) -> SafeString | str:
        """What the body has saved for its next attempt."""
        return as_json(task.checkpoint)

    @admin.display(description=_("arguments"))
    def shown_args(self, task: Task) -> SafeString | str:
        """The positional arguments."""
        return as_json(task.args)

    @admin.display(description=_("keyword arguments"))
    def shown_kwargs(self, task: Task) -> SafeString | str:
        """The keyword arguments."""
        return as_json(task.kwargs)

    @admin.display(description=_("result"))
    def shown_result(self, task: Task) -> SafeString | str:
        """The result, without the traceback, which stands below."""
        error = task.result.get("err") if isinstance(task.result, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("exception"), dict):
            return as_json(task.result)
        exception = {key: value for key, value in error["exception"].items() if key != "traceback"}
        return as_json({"err": error | {"exception": exception}})

    @admin.display(description=_("traceback"))
    def shown_traceback(self, task: Task) -> SafeString | str:
        """The traceback of the error, if the task failed with one."""
        error = task.result.get("err") if isinstance(task.result, dict) else None
        exception = error.get("exception") if isinstance(error, dict) else None
        return block(str(exception.get("traceback", ""))) if isinstance(exception, dict) else "-"

    @admin.display(description=_("retry policy"))
    def shown_policy(self, task: Task) -> SafeString | str:
        """The retry policy as the row has it."""
        return as_json(task.retry_policy)

    @admin.display(description=_("metadata"))
    def shown_metadata(self, task: Task) -> SafeString | str:
        """What the sender said of the task."""
        return as_json(task.metadata)
