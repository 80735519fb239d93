"""The admin of limits by key: which tasks hold a place and how many wait. Operators can override a limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.numbers import format_lower_bound, format_number
from ...core.operations import acting_as
from ...db.now import Now
from ...models import Limit, Task
from ...models.depths import Depth, depths_of_limits
from ...models.limit import LimitQuerySet
from ..ages import relative_time
from ..base import ReadOnlyAdmin
from ..form_fields import describe_changes
from ..formatting import time_column
from ..links import Links
from ..status_text import status_badge, wait_text

#: Maximum number of listed tasks.
MAX_LISTED: Final = 20


#: The columns that operators edit.
OVERRIDES: Final = ("max_concurrency_override", "rate_override")


class LimitList(ChangeList):
    """Adds the tasks of each limit on the page, in two statements."""

    def get_results(self, request: HttpRequest) -> None:
        """Count them for the rows of this page only."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        _attach_counts(self.result_list, Links(self.model_admin.admin_site, request))


class LimitAdmin(ReadOnlyAdmin):
    """Lists the limits that have been used recently, and overrides them."""

    list_display = ("key", "places_taken", "blocked_tasks", "oldest_blocked", "shown_rate", "shown_released_at")
    ordering = ("key",)
    sortable_by = ()
    search_fields = ("key",)
    search_help_text = _("The beginning of a key.")
    fields = (
        "places_taken",
        "holding_tasks",
        "blocked_tasks",
        "oldest_blocked",
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
        return self.has_right(request, "change")

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

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list with the blocked tasks of each limit."""
        return LimitList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the database's current time."""
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=Now())
        return rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find keys by prefix, which is indexed."""
        term = search_term.strip()
        if "\0" in term:
            return queryset.none(), False
        return (queryset.filter(key__startswith=term) if term else queryset), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Prepare the links of the page, and count its tasks."""
        limit = super().get_object(request, object_id, from_field)
        if limit is not None:
            _attach_counts([limit], Links(self.admin_site, request))
        return limit

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out fields without a value."""
        values = {
            "oldest_blocked": obj and obj.depth.blocked_waits is not None,
            "shown_rate": obj and obj.terms.rate,
            "exact_next_at": obj and obj.next_at,
        }
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
        holders = rows.order_by("pk").only(*_HOLDER_COLUMNS)[:MAX_LISTED]
        context = {
            "holders": [_holder(task, limit.page_links) for task in holders],
            "left": format_number(max(0, limit.held_count - MAX_LISTED)),
            "is_more": limit.held_count > MAX_LISTED,
        }
        return render_to_string(_HOLDERS, context) if context["holders"] else "-"

    @admin.display(description=_("blocked"))
    def blocked_tasks(self, limit: Any) -> SafeString | str:
        """The number of tasks that wait for a place, linked to the list of them."""
        depth: Depth = limit.depth
        number = format_lower_bound(depth.blocked, depth.is_more_blocked)
        words = ngettext("%s task", "%s tasks", depth.blocked) % number
        links: Links = limit.page_links
        return links.to_list(Task, words, waits_for_limit=limit.pk) if depth.blocked else words

    @admin.display(description=_("blocked since"))
    def oldest_blocked(self, limit: Any) -> SafeString | str:
        """Since when the oldest of them has waited."""
        waits: float | None = limit.depth.blocked_waits
        return "-" if waits is None else relative_time(limit.seen_at - timedelta(seconds=waits), limit.seen_at)


def _attach_counts(limits: Sequence[Any], links: Links) -> None:
    """Add to limits from one database how many tasks hold a place and how many are blocked, and the links."""
    if not limits:
        return
    tasks, keys = _tasks(limits[0]), [limit.pk for limit in limits]
    holding = tasks.released().filter(limit_key__in=keys).order_by().values_list("limit_key")
    held, depths = dict(holding.annotate(Count("pk"))), depths_of_limits(tasks, keys)
    for limit in limits:
        limit.held_count, limit.depth, limit.page_links = held.get(limit.pk, 0), depths[limit.pk], links


#: The columns that the page shows of a task with a place.
_HOLDER_COLUMNS: Final = (
    "task_name", "status", "enqueued_at", "claimed_at", "started_at", "next_retry_at", "group_key", "claim",
    "good_until", "blocked", "limit_key", "released_at",
)  # fmt: skip

_HOLDERS: Final = "admin/horsies_django/limit_holders.html"


def _holder(task: Any, links: Links) -> dict[str, SafeString | str]:
    return {
        "link": links.to(Task, task.pk, task.task_name),
        "state": status_badge(task),
        "note": wait_text(task, task.seen_at),
        "since": relative_time(task.started_at or task.claimed_at or task.due_at, task.seen_at),
    }


def _tasks(limit: Limit) -> Any:
    return Task.objects.using(limit._state.db)
