"""A change list with keyset pagination and no counts."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import model_ngettext
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from ...ops.keyset.keys import Key, lowest_key, parse_key
from ...ops.keyset.scan import PAGE, KeyRange, KeysetScan, Page
from ..formatting import format_number, format_time
from .search import Search

#: The cursor's parameters.
BEFORE, AFTER = "before", "after"


class KeysetChangeList(ChangeList):
    """Shows one page of a keyset scan; the URL has the cursor.

    Attributes that templates of Django and of themes read about numbered pages have values that make them show none.
    """

    before: Key | None
    after: Key | None
    request: HttpRequest

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Remove the cursor from the parameters first: it is not a filter, and other links must not keep it."""
        for name in (BEFORE, AFTER):
            if name in self.params:
                setattr(self, name, parse_key(self.model, self.params.pop(name)))
                self.filter_params.pop(name)
            elif not hasattr(self, name):
                setattr(self, name, None)
        self.request = request
        try:
            return super().get_queryset(request, exclude_parameters)
        except ValueError as error:  # a NUL, or an invalid number
            raise IncorrectLookupParameters from error

    def get_results(self, request: HttpRequest) -> None:
        """Do not load the page here: actions on rows do not need it."""
        self.show_full_result_count = False
        self.can_show_all = False
        self.multi_page = False
        self.paginator = Paginator([], PAGE)

    @property
    def noun(self) -> str:
        """The model's name, singular or plural by the number of rows on the page."""
        return model_ngettext(self.opts, self.result_count)

    @cached_property
    def scan(self) -> KeysetScan:
        """The scan: the filtered rows with their scope and bounds."""
        sources = [*self.filter_specs, self.search]
        bounds = KeyRange()
        for source in sources:
            bounds &= getattr(source, "bounds", KeyRange())
        known = [source.scope for source in sources if hasattr(source, "scope")]
        scope = min(known, key=lambda scope: scope.cost)
        for spec in sources:
            scope = spec.narrow(scope) if hasattr(spec, "narrow") else scope
        return KeysetScan(self.queryset, scope, bounds, self.search.row_filter, self.search.max_filtered)

    @cached_property
    def search(self) -> Search:
        """The parsed search."""
        return self.parse_search(self.query)

    def parse_search(self, text: str) -> Search:
        """Parse a search."""
        return Search()

    @cached_property
    def page(self) -> Page:
        """The page of rows."""
        return self.scan.page(before=self.before, after=self.after)

    @property
    def result_list(self) -> list[Any]:
        """The rows of the page; templates read this name."""
        return self.page.rows

    @property
    def result_count(self) -> int:  # type: ignore[override]  # never assigned
        """The number of rows on the page; there is no other count."""
        return len(self.page.rows)

    @property
    def full_result_count(self) -> int:  # type: ignore[override]  # never assigned
        """The same number, so that nothing offers to show all."""
        return self.result_count

    @property
    def show_admin_actions(self) -> bool:  # type: ignore[override]  # never assigned
        """Whether there are rows to act on."""
        return bool(self.page.rows)

    @property
    def descriptions(self) -> list[str]:
        """The active filters and the search, in words."""
        words = [text for spec in self.filter_specs if (text := getattr(spec, "description", None))]
        return [*words, *([f"{self.query!r}"] if self.query else [])]

    # The scanned range of time.

    @property
    def scanned_from(self) -> str:
        """The time of the oldest scanned row, if there is more to scan."""
        return format_time(self.page.scanned_from, exactly=False) if self.page.scanned_from else ""

    @property
    def scanned_to(self) -> str:
        """The time of the newest scanned row, if the page does not begin with the newest."""
        return format_time(self.page.scanned_to, exactly=False) if self.page.scanned_to else ""

    @property
    def looked(self) -> str:
        """The number of scanned rows, if there is more to scan and the number is known."""
        return format_number(self.page.looked) if self.page.scanned_from and self.page.looked else ""

    # Links to other pages.

    @property
    def newest_url(self) -> str:
        """The URL of the first page; None on that page."""
        return self.get_query_string() if self.before or self.after else ""

    @property
    def newer_url(self) -> str:
        """The URL of the page with newer rows."""
        return self._page_url(AFTER, self.page.newer)

    @property
    def older_url(self) -> str:
        """The URL of the page with older rows."""
        return self._page_url(BEFORE, self.page.older)

    @property
    def oldest_url(self) -> str:
        """The URL of the last page; None on that page."""
        return self._page_url(AFTER, lowest_key(self.model)) if self.page.older else ""

    def _page_url(self, name: str, key: Key | None) -> str:
        return self.get_query_string({name: str(key)}) if key is not None else ""
