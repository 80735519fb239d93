"""The admin of limits by key: which tasks hold a place and how many wait. Operators can override a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Count, IntegerField, Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.operations import acting_as
from ...db.now import Now
from ...models import Limit, Task
from ...models.limit import LimitQuerySet
from ..base import ReadOnlyAdmin, is_read_only
from ..change_message import describe_changes
from ..formatting import format_number, time_column
from ..links import Links
from ..status_text import status_badge, wait_text
from ..times import relative_time

#: Maximum number of listed tasks, and of counted tasks.
MAX_LISTED: Final = 20
MAX_COUNTED: Final = 1_000


#: The columns that operators edit.
OVERRIDES: Final = ("max_concurrency_override", "rate_override")


class LimitAdmin(ReadOnlyAdmin):
    """Lists the limits that have been used recently, and overrides them."""

    list_display = ("key", "places_taken", "shown_rate", "shown_released_at")
    ordering = ("key",)
    sortable_by = ()
    search_fields = ("key",)
    search_help_text = _("The beginning of a key.")
    fields = (
        "places_taken",
        "holding_tasks",
        "waiting_tasks",
        "shown_rate",
        "exact_released_at",
        "exact_next_at",
        *OVERRIDES,
    )
    readonly_fields = fields[:-2]

    class Media:
        css: ClassVar[Any] = {"all": ["horsies_django/limit.css"]}

    shown_released_at = time_column("released_at", _("last admitted"))
    exact_released_at = time_column("released_at", _("last admitted"), exactly=True)
    exact_next_at = time_column("next_at", _("next check"), exactly=True)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether this user may override a limit."""
        return not is_read_only() and request.user.has_perm("horsies_django.change_limit")

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Write old and new values of edited fields to the history."""
        return describe_changes(form, {})

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        """Save the override only: workers update the other columns."""
        with acting_as(request.user.get_username(), "admin"):
            limits = LimitQuerySet(Limit, using=obj._state.db).filter(pk=obj.pk)
            limits.override(max_concurrency=obj.max_concurrency_override, rate=obj.rate_override)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show one save button only."""
        context = context | {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().render_change_form(request, context, *args, **kwargs)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Count the taken places, of which there are few."""
        rows: QuerySet[Any] = super().get_queryset(request)
        holding = Task.objects.using(rows.db).released().filter(limit_key=OuterRef("pk")).order_by()
        count = holding.values("limit_key").annotate(count=Count("pk")).values("count")
        held_count = Coalesce(Subquery(count), 0, output_field=IntegerField())
        annotated: QuerySet[Any] = rows.annotate(held_count=held_count)
        return annotated

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find keys by prefix, which is indexed."""
        term = search_term.strip()
        if "\0" in term:
            return queryset.none(), False
        return (queryset.filter(key__startswith=term) if term else queryset), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Prepare the links of the page."""
        limit = super().get_object(request, object_id, from_field)
        if limit is not None:
            limit.page_links = Links(self.admin_site, request)
        return limit

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out fields without a value."""
        values = {"shown_rate": obj and obj.terms.rate, "exact_next_at": obj and obj.next_at}
        return [name for name in self.fields if values.get(name, True)]

    @admin.display(description=_("in use"))
    def places_taken(self, limit: Any) -> str:
        """The number of taken places, and how many there are."""
        places = limit.terms.max_concurrency
        numbers = {"taken": format_number(limit.held_count), "places": format_number(places)}
        if places is None:
            return gettext("%(taken)s (no maximum)") % numbers
        return gettext("%(taken)s of %(places)s") % numbers

    @admin.display(description=_("rate"))
    def shown_rate(self, limit: Limit) -> str:
        """The rate in force."""
        return limit.terms.rate or "-"

    @admin.display(description=_("tasks in progress"))
    def holding_tasks(self, limit: Any) -> SafeString | str:
        """The tasks that hold a place: name, state, and since when they are in it."""
        rows = _tasks(limit).released().filter(limit_key=limit.pk).annotate(seen_at=Now())
        found = rows.order_by("pk").only(*_HOLDER_COLUMNS)[:MAX_LISTED]
        context = {
            "holders": [_holder(task, limit.page_links) for task in found],
            "left": format_number(max(0, limit.held_count - MAX_LISTED)),
            "is_more": limit.held_count > MAX_LISTED,
        }
        return render_to_string(_HOLDERS, context) if context["holders"] else "-"

    @admin.display(description=_("waiting"))
    def waiting_tasks(self, limit: Any) -> SafeString | str:
        """The number of tasks that wait for a place, linked to the list of them."""
        count = _tasks(limit).blocked().filter(limit_key=limit.pk)[: MAX_COUNTED + 1].count()
        number = format_number(count) if count <= MAX_COUNTED else f"{format_number(MAX_COUNTED)}+"
        words = ngettext("%s task", "%s tasks", count) % number
        links: Links = limit.page_links
        return links.to_list(Task, words, waits_for_limit=limit.pk) if count else words


#: The columns that the page shows of a task with a place.
_HOLDER_COLUMNS: Final = (
    "task_name", "status", "enqueued_at", "claimed_at", "started_at", "next_retry_at", "group_key", "claim",
    "good_until", "blocked", "limit_key", "released_at",
)  # fmt: skip

_HOLDERS: Final = "admin/horsies_django/limit_holders.html"


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that holds a place, on the page of its limit."""

    link: SafeString | str
    state: SafeString
    note: str
    since: SafeString


def _holder(task: Any, links: Links) -> Holder:
    since = task.started_at or task.claimed_at or task.due_at
    return Holder(
        links.to(Task, task.pk, task.task_name),
        status_badge(task),
        wait_text(task, task.seen_at),
        relative_time(since, task.seen_at),
    )


def _tasks(limit: Limit) -> Any:
    return Task.objects.using(limit._state.db)
