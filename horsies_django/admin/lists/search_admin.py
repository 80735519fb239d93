"""The admin of a searched list. It imports the change list, the search and the scan when they are first used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..base import QueueModelAdmin

if TYPE_CHECKING:
    from .changelist import KeysetChangeList
    from .search import Search


class SearchAdmin(QueueModelAdmin):
    """Lists its rows by keyset, searches them by terms, and shows messages about the search above the list."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        """Return the change list that pages by keyset."""
        from .changelist import KeysetChangeList

        return KeysetChangeList

    def complete_rows(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Add what the columns need to the rows of a page."""

    def parse_search(self, text: str, database: str) -> Search:
        """Parse a search."""
        raise NotImplementedError

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search by the terms.

        The change list scans the returned rows and applies the search's row filter. Elsewhere, such as in a project's
        autocomplete field, one page of such a scan is searched.
        """
        from ...ops.keyset.scan import KeysetScan

        if has_nul(request):
            return queryset.none(), False
        search = self.parse_search(search_term, queryset.db)
        rows = search.criteria.filter(queryset)
        if is_list(request):
            return rows, False
        page = KeysetScan(rows, search.criteria, search.row_filter).page()
        return queryset.filter(pk__in=[row.pk for row in page.rows]), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Say what is invalid in the search, and where a mask has hidden values from it, which the scan finds out."""
        response = super().changelist_view(request, extra_context)
        listed = (getattr(response, "context_data", None) or {}).get("cl")
        if listed is None or not listed.query:
            return response
        search: Search = listed.search
        assert listed.page
        if search.problem:
            messages.error(request, search.problem)
        if search.hidden:
            names = {"names": ", ".join(f"“{name}”" for name in search.hidden)}
            messages.warning(request, _("%(names)s: values that a mask hides are not searched.") % names)
        return response


def has_nul(request: HttpRequest) -> bool:
    """Return whether the search has a NUL. Django shows an error for it and would then list everything."""
    return "\0" in request.GET.get(SEARCH_VAR, "")


def is_list(request: HttpRequest) -> bool:
    """Return whether the request is for a change list."""
    return request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_changelist")
