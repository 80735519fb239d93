"""The admin of limits by key, read-only: which tasks hold a place and how many wait."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...models import Limit, Task
from ..base import ReadOnlyAdmin
from ..formatting import time_column
from ..links import Links

#: Maximum number of listed tasks, and of counted tasks.
MAX_LISTED: Final = 20
MAX_COUNTED: Final = 1_000


class LimitAdmin(ReadOnlyAdmin):
    """Lists the limits that have been used recently."""

    list_display = ("key", "max_concurrency", "rate", "places_taken", "shown_released_at")
    ordering = ("key",)
    sortable_by = ()
    search_fields = ("key",)
    search_help_text = _("The beginning of a key.")
    fields = (
        "key",
        "max_concurrency",
        "rate",
        "places_taken",
        "holding_tasks",
        "waiting_tasks",
        "exact_released_at",
        "exact_next_at",
    )
    readonly_fields = fields

    shown_released_at = time_column("released_at", _("last admitted"))
    exact_released_at = time_column("released_at", _("last admitted"), exactly=True)
    exact_next_at = time_column("next_at", _("next check"), exactly=True)

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

    @admin.display(description=_("in use"))
    def places_taken(self, limit: Any) -> int:
        """The number of taken places."""
        return int(limit.held_count)

    @admin.display(description=_("running"))
    def holding_tasks(self, limit: Any) -> SafeString | str:
        """The tasks that hold a place."""
        keys = _tasks(limit).released().filter(limit_key=limit.pk).values_list("pk", flat=True)[:MAX_LISTED]
        links: Links = limit.page_links
        return format_html_join(", ", "{}", ((links.to(Task, key),) for key in keys)) or "-"

    @admin.display(description=_("waiting"))
    def waiting_tasks(self, limit: Limit) -> str:
        """The number of tasks that wait for a place."""
        count = _tasks(limit).blocked().filter(limit_key=limit.pk)[: MAX_COUNTED + 1].count()
        return str(count) if count <= MAX_COUNTED else f"{MAX_COUNTED}+"


def _tasks(limit: Limit) -> Any:
    return Task.objects.using(limit._state.db)
