"""The admin of schedules: the list, its filters and actions, and editing schedules that no code declares."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import JSONField, Model, Q, QuerySet
from django.forms import Select, Textarea
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...core.backends import all_backends
from ...core.numbers import fill_numbers
from ...db.expressions import SecondsUntil
from ...db.now import Now
from ...models import Schedule
from ...models.schedule import DisabledBy, ScheduleQuerySet
from ...ops.keyset.criteria import Criteria
from ..actions.admin_action import AdminAction
from ..base import queue_database
from ..form_fields import JSON_BOX, JSONPayloadField, describe_changes
from ..lists.choice_filters import ChoiceFilter
from ..lists.search_admin import has_nul
from .columns import DISABLED
from .form import ScheduleForm
from .page import SchedulePage

#: Fields that may contain sensitive values.
_VALUES: Final = ("args", "kwargs", "options")


# Filters. All choices but the most common ones use an index.


class ScheduleStateFilter(ChoiceFilter):
    """Filters by enabled or by the reason for being disabled."""

    title = _("state")
    parameter_name = "state"
    options: ClassVar = {
        "enabled": (_("enabled"), Criteria(Q(enabled=True))),
        "disabled": (_("disabled"), Criteria(Q(enabled=False))),
        **{by.value: (words, Criteria(Q(enabled=False, disabled_by=by.value))) for by, words in DISABLED.items()},
    }


class ScheduleProblemFilter(ChoiceFilter):
    """Finds schedules whose latest run could not be sent."""

    title = _("problems")
    parameter_name = "trouble"
    options: ClassVar = {"error": (_("with an error"), Criteria(~Q(last_error="")))}


class SourceFilter(ChoiceFilter):
    """Filters by where schedules are declared: those declared in code have a source."""

    title = _("source")
    parameter_name = "source"
    options: ClassVar = {
        "hand": (_("created by an operator"), Criteria(Q(source=""))),
        "code": (_("defined in code"), Criteria(~Q(source=""))),
    }


# Actions, also on schedules that code declares.

#: Maximum number of errors in a message.
_MAX_ERRORS: Final = 3


def _run(rows: ScheduleQuerySet) -> int:
    """Send a run of each. A failure is stored on its schedule and does not stop the others."""
    from ...schedules.dispatch import try_run  # only here, because it imports the compiler of workflows

    keys = rows.order_by("pk").values_list("pk", flat=True)
    return sum(try_run(rows.all_rows().filter(pk=key)) is not None for key in keys)


class RunAction(AdminAction):
    """Sends a run of each schedule."""

    def skipped_reason(self, rows: QuerySet[Any]) -> str:
        """Return the errors; a successful run has cleared its own."""
        failed = rows.order_by("name").exclude(last_error="").values_list("name", "last_error")[:_MAX_ERRORS]
        return " ".join(f"{name}: {error}" for name, error in failed)


ENABLE: Final = AdminAction(
    name="enable",
    label=_("Enable"),
    list_label=_("Enable selected schedules"),
    act=ScheduleQuerySet.enable,
    message=lambda count: ngettext("%d schedule enabled.", "%d schedules enabled.", count),
    has_button=lambda schedule: not schedule.enabled,
    logged_columns=("enabled", "next_run_at"),
)

DISABLE: Final = AdminAction(
    name="disable",
    label=_("Disable"),
    list_label=_("Disable selected schedules"),
    act=ScheduleQuerySet.disable,
    message=lambda count: ngettext("%d schedule disabled.", "%d schedules disabled.", count),
    has_button=lambda schedule: schedule.enabled or schedule.disabled_by == DisabledBy.CODE,
    logged_columns=("enabled",),
)

RUN_NOW: Final = RunAction(
    name="run_now",
    label=_("Run now"),
    list_label=_("Run selected schedules now"),
    act=_run,
    message=lambda count: ngettext("%d run enqueued.", "%d runs enqueued.", count),
    logged_columns=("last_task_id", "last_workflow_id"),
)


class ScheduleAdmin(SchedulePage):
    """Lists schedules and acts on them; adds and edits those that are not declared in code."""

    admin_actions = (RUN_NOW, ENABLE, DISABLE)
    form = ScheduleForm
    formfield_overrides = {JSONField: {"form_class": JSONPayloadField, "widget": Textarea(attrs=JSON_BOX)}}
    list_display = (
        "name",
        "shown_state",
        "shown_next",
        "shown_when",
        "shown_target",
        "shown_last",
        "shown_count",
        "shown_error",
    )
    list_filter = (ScheduleStateFilter, ScheduleProblemFilter, SourceFilter)
    ordering = ("name",)
    sortable_by = ()
    search_fields = ("name", "task_name", "workflow_name")
    search_help_text = _("Part of the name, or of the task or workflow that it runs.")

    # Permissions.

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether this user may add a schedule, which lets them run any task of the project."""
        return self.has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether this user may edit this schedule; those declared in code are read-only."""
        is_of_code = isinstance(obj, Schedule) and bool(obj.source)
        return self.has_right(request, "change") and not is_of_code

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether this user may delete this schedule; code would declare its own again."""
        is_deletable = isinstance(obj, Schedule) and (not obj.source or obj.declared_enabled is None)
        return self.has_right(request, "delete") and is_deletable

    def show_outcome(self, request: HttpRequest, done: str, left: int, why: str = "") -> None:
        """Show how many schedules were changed and how many were skipped, for reasons other than their status."""
        if left > 0:
            alone = ngettext(
                "%d was skipped: it is already in that state, or its task or workflow does not exist.",
                "%d were skipped: they are already in that state, or their task or workflow does not exist.",
                left,
            )
            done = f"{done} {fill_numbers(alone, left)} {why}".rstrip()
        self.message_user(request, done, messages.WARNING if left > 0 else messages.SUCCESS)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Write old and new values of edited fields to the history; of arguments, which may be masked, only that."""
        if add:
            return super().construct_change_message(request, form, formsets, add)
        return describe_changes(form, {}, _VALUES)

    # Rows.

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Annotate the database's current time."""
        rows: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = rows.annotate(read_at=Now(), next_in=SecondsUntil("next_run_at"))
        return annotated

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find parts of the name, task or workflow; nothing if NUL is among them, which Django would leave out."""
        if has_nul(request):
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)

    # Form.

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show masked values where they can't be edited; offer *enabled* to users who may change it."""
        is_typed = obj is None or self.has_change_permission(request, obj)
        fieldsets: Any = [(title, dict(options)) for title, options in super().get_fieldsets(request, obj)]
        for _title, options in fieldsets if not is_typed else ():
            options["fields"] = tuple(f"shown_{name}" if name in _VALUES else name for name in options["fields"])
        if obj is None and ENABLE.is_allowed(request, self.model):
            fieldsets[-1][1]["fields"] += ("enabled",)
        return fieldsets

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Leave out the fields for input if the schedule is read-only."""
        if obj is not None and not self.has_change_permission(request, obj):
            kwargs["help_texts"] = dict.fromkeys(("task_name", "workflow_name", "timing", "timezone"), "")
        return super().get_form(request, obj, change=change, **kwargs)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the horsies backends."""
        if db_field.name == "backend" and (aliases := [backend.alias for backend in all_backends()]):
            kwargs["widget"] = Select(choices=[(alias, alias) for alias in aliases])
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Save to the scheduler's database, and only edited fields: the schedule may have fired meanwhile."""
        if not change:
            obj.enabled = obj.enabled and ENABLE.is_allowed(request, self.model)
            obj.save(using=queue_database())
            return
        rows = Schedule.objects.using(queue_database()).filter(pk=obj.pk, source="")
        with transaction.atomic(using=rows.db):
            fresh = rows.select_for_update().first()
            if fresh is None:  # deleted, or taken over by code, after the page was opened
                raise PermissionDenied
            for name in form.changed_data:
                setattr(fresh, name, getattr(obj, name))
            fresh.save(using=rows.db, update_fields=[*form.changed_data, "updated_at"])

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        """Delete it in its own database."""
        obj.delete(using=queue_database())
