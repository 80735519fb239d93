"""A change list that walks: pages by cursor, nothing counted."""

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
from ...ops.keyset.scan import PAGE, Bounds, KeysetScan, Page
from ..formatting import format_time
from .search import Search

#: The parameters of the cursor.
BEFORE, AFTER = "before", "after"


class KeysetChangeList(ChangeList):
    """Shows a page of a walk. The address says where it begins, and all else.

    What Django's own templates, and those of themes, ask of a list that is not divided into numbered pages is answered
    so that they show none.
    """

    before: Key | None
    after: Key | None
    request: HttpRequest

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Take the cursor out of the parameters first: it is no filter, and no other link has it."""
        for name in (BEFORE, AFTER):
            if name in self.params:
                setattr(self, name, parse_key(self.model, self.params.pop(name)))
                self.filter_params.pop(name)
            elif not hasattr(self, name):
                setattr(self, name, None)
        self.request = request
        try:
            return super().get_queryset(request, exclude_parameters)
        except ValueError as error:  # a NUL, a number that is none
            raise IncorrectLookupParameters from error

    def get_results(self, request: HttpRequest) -> None:
        """Leave the page until somebody asks for it: who acts on rows does not."""
        self.show_full_result_count = False
        self.can_show_all = False
        self.multi_page = False
        self.paginator = Paginator([], PAGE)

    @property
    def noun(self) -> str:
        """What the rows of the page are called, one or many."""
        return model_ngettext(self.opts, self.result_count)

    @cached_property
    def scan(self) -> KeysetScan:
        """The rows, and where they are."""
        sources = [*self.filter_specs, self.search]
        bounds = Bounds()
        for source in sources:
            bounds &= getattr(source, "bounds", Bounds())
        known = [source.scope for source in sources if hasattr(source, "scope")]
        scope = min(known, key=lambda scope: scope.cost)
        for spec in self.filter_specs:
            scope = spec.narrow(scope) if hasattr(spec, "narrow") else scope
        return KeysetScan(self.queryset, scope, bounds, self.search.row_filter, self.search.is_slow)

    @cached_property
    def search(self) -> Search:
        """What was typed."""
        return self.parse_search(self.query)

    def parse_search(self, text: str) -> Search:
        """Read what was typed."""
        return Search()

    @cached_property
    def page(self) -> Page:
        """The rows of the page."""
        return self.scan.page(before=self.before, after=self.after)

    @property
    def result_list(self) -> list[Any]:
        """The rows, as templates ask for them."""
        return self.page.rows

    @property
    def result_count(self) -> int:  # type: ignore[override]  # nobody sets it
        """The number of rows that are shown: there is no other."""
        return len(self.page.rows)

    @property
    def full_result_count(self) -> int:  # type: ignore[override]  # nobody sets it
        """The same: nothing offers to show more."""
        return self.result_count

    @property
    def show_admin_actions(self) -> bool:  # type: ignore[override]  # nobody sets it
        """Whether there is something to act on."""
        return bool(self.page.rows)

    @property
    def descriptions(self) -> list[str]:
        """What it is narrowed to, in words."""
        words = [text for spec in self.filter_specs if (text := getattr(spec, "description", None))]
        return [*words, *([f"{self.query!r}"] if self.query else [])]

    # How far it has looked.

    @property
    def scanned_from(self) -> str:
        """The older end of what was looked through, if there is more to look through."""
        return format_time(self.page.scanned_from, exactly=False) if self.page.scanned_from else ""

    @property
    def scanned_to(self) -> str:
        """The newer end, if that is not the newest there is."""
        return format_time(self.page.scanned_to, exactly=False) if self.page.scanned_to else ""

    # Links to other pages of it.

    @property
    def newest_url(self) -> str:
        """The first page, from any other."""
        return self.get_query_string() if self.before or self.after else ""

    @property
    def newer_url(self) -> str:
        """The page before this one."""
        return self._page_url(AFTER, self.page.newer)

    @property
    def older_url(self) -> str:
        """The page after this one."""
        return self._page_url(BEFORE, self.page.older)

    @property
    def oldest_url(self) -> str:
        """The last page, if this is not it."""
        return self._page_url(AFTER, lowest_key(self.model)) if self.page.older else ""

    def _page_url(self, name: str, key: Key | None) -> str:
        return self.get_query_string({name: str(key)}) if key is not None else ""
