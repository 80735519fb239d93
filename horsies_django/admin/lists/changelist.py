"""A change list with keyset pagination and no counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_
from typing import Any, ClassVar, cast

from django.apps import apps
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import model_ngettext
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...ops.keyset.keys import parse_key
from ...ops.keyset.ordered import OrderedScan, parse_position
from ...ops.keyset.scan import PAGE, KeysetScan, Page
from ...ops.metrics import Count
from ..formatting import format_time
from .choice_filters import ChoiceFilter
from .list_state import NEWEST, OLDEST, SORT, FilterChip, SortOrder, StateTab, filter_chips, state_tabs
from .search import Search
from .search_admin import SearchAdmin

#: The cursor's parameters.
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link to another page of a list; ``rel`` is ``prev``, ``next`` or empty."""

    label: str
    url: str
    rel: str = ""


class KeysetChangeList(ChangeList):
    """Shows one page of a keyset scan; the URL has the cursor.

    Attributes that templates of Django and of themes read about numbered pages have values that make them show none.
    """

    #: The filter that the list shows as tabs; None: it has none.
    state_filter_class: ClassVar[type[ChoiceFilter] | None] = None
    #: States that have a tab only if they are selected: they are sums of others.
    sums_of_states: ClassVar[frozenset[str]] = frozenset()
    #: States that have no tab while they have no rows, unless they are selected.
    rare_states: ClassVar[frozenset[str]] = frozenset()

    cursors: dict[str, str]
    request: HttpRequest

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Remove the cursor from the parameters first: it is not a filter, and other links must not keep it."""
        if not hasattr(self, "cursors"):
            self.cursors = {name: self.params.pop(name) for name in (BEFORE, AFTER) if name in self.params}
            for name in self.cursors:
                self.filter_params.pop(name)
        self.request = request
        try:
            return super().get_queryset(request, exclude_parameters)
        except ValueError as error:  # a NUL, or an invalid number
            raise IncorrectLookupParameters from error

    def get_filters_params(self, params: Any = None) -> Any:
        """Leave out the sort order: links keep it, but it is no filter."""
        return {name: value for name, value in super().get_filters_params(params).items() if name != SORT}

    def get_filters(self, request: HttpRequest) -> Any:
        """Let the state have its tabs only, and the chips offer to clear the filters."""
        specs, has_filters, params, may_have_duplicates, _is_active = super().get_filters(request)
        for spec in specs:
            if self.state_filter_class is not None and isinstance(spec, self.state_filter_class):
                spec.template = "admin/horsies_django/filter_with_tabs.html"
        return specs, has_filters, params, may_have_duplicates, False

    def get_results(self, request: HttpRequest) -> None:
        """Do not load the page here: actions on rows do not need it."""
        self.show_full_result_count = False
        self.can_show_all = False
        self.multi_page = False
        self.paginator = Paginator([], PAGE)

    @property
    def is_down(self) -> bool:
        """Whether the page is read from newer rows to older ones."""
        if AFTER in self.cursors:
            return False
        return BEFORE in self.cursors or self.sort_order == NEWEST

    @property
    def _admin(self) -> SearchAdmin:
        return cast("SearchAdmin", self.model_admin)

    # What the list shows: the state, the filters, the order.

    @cached_property
    def state_filter(self) -> ChoiceFilter | None:
        """The filter that has tabs."""
        kind = self.state_filter_class
        return next((spec for spec in self.filter_specs if kind is not None and isinstance(spec, kind)), None)

    @cached_property
    def state_tabs(self) -> list[StateTab]:
        """The tabs of the states."""
        if self.state_filter is None:
            return []
        return list(state_tabs(self, self.state_filter, self.state_counts()))

    def state_counts(self) -> Mapping[str, Count]:
        """Return the number of rows in each state, as far as they are known at little cost."""
        return {}

    @cached_property
    def active_filters(self) -> list[Any]:
        """The filters that narrow the list, without a state that has a tab."""
        used = [spec for spec in self.filter_specs if any(name in self.params for name in spec.expected_parameters())]
        active = [spec for spec in used if getattr(spec, "is_active", True)]
        return [spec for spec in active if spec is not self.state_filter or spec.is_unknown]

    @property
    def filter_chips(self) -> list[FilterChip]:
        """The active filters and the search, each with a link that removes it."""
        return list(filter_chips(self))

    @property
    def narrowed_by(self) -> list[str]:
        """The state, the filters and the search in words, for the title of the page."""
        states = [] if self.state_filter is None else [str(tab.label) for tab in self.state_tabs[1:] if tab.is_current]
        return states + [chip.words for chip in self.filter_chips]

    @property
    def unfiltered_url(self) -> str:
        """The URL of the list without these filters and the search; the state stays."""
        names = [name for spec in self.active_filters for name in spec.expected_parameters()]
        return self.get_query_string(dict.fromkeys([*names, SEARCH_VAR]))

    @cached_property
    def sort_orders(self) -> list[SortOrder]:
        """The orders that an index provides for the list."""
        return [NEWEST, OLDEST]

    @cached_property
    def sort_order(self) -> SortOrder:
        """The requested order, or the first."""
        asked = self.params.get(SORT)
        return next((order for order in self.sort_orders if order.name == asked), self.sort_orders[0])

    @property
    def sort_links(self) -> list[tuple[SortOrder, str]]:
        """The orders, each with the URL of the list in that order."""
        first = self.sort_orders[0]
        return [
            (order, self.get_query_string({SORT: None if order == first else order.name})) for order in self.sort_orders
        ]

    @property
    def noun(self) -> str:
        """The model's name, singular or plural by the number of rows on the page."""
        return model_ngettext(self.opts, self.result_count)

    @cached_property
    def scan(self) -> KeysetScan:
        """The scan: the filtered rows with their scope and bounds."""
        criteria = (spec.criteria for spec in self.filter_specs if hasattr(spec, "criteria"))
        return KeysetScan(self.queryset, reduce(and_, criteria, self.search.criteria), self.search.row_filter)

    @cached_property
    def search(self) -> Search:
        """The parsed search."""
        return self._admin.parse_search(self.query, self.root_queryset.db)

    @cached_property
    def page(self) -> Page:
        """The page of rows."""
        page = self.load(self.scan)
        self._admin.complete_rows(self.request, page.rows)
        return page

    def load(self, scan: KeysetScan) -> Page:
        """Load the page of a scan, with its rows in the order of the list."""
        order, text = self.sort_order, self.cursors.get(BEFORE if self.is_down else AFTER, "")
        if order.index_range is None:
            page = scan.page(parse_key(self.model, text), is_down=self.is_down)
        else:
            parts = scan.rows, scan.criteria, scan.row_filter
            scan = OrderedScan(*parts, index_range=order.index_range, column=order.column)
            page = scan.page(parse_position(text), is_down=self.is_down)
        return page if order == NEWEST else replace(page, rows=page.rows[::-1])

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

    @property
    def scanned_text(self) -> str:
        """How far the scan came, if it stopped before the page was full."""
        page, order = self.page, self.sort_order
        if page.stopped_at is None:
            return ""
        stop = format_time(page.stopped_at, exactly=False)
        if order.column or (page.began_at is None and order == OLDEST):
            return _("Searched rows in this order up to %s.") % stop
        if page.began_at is None:
            return _("Searched back to %s.") % stop
        since, until = sorted((page.stopped_at, page.began_at))
        words = {"since": format_time(since, exactly=False), "until": format_time(until, exactly=False)}
        return _("Searched rows sent between %(since)s and %(until)s.") % words

    @property
    def filters_are_in_search(self) -> bool:
        """Whether the skin has the filters in the form of the search; forms can't be nested."""
        return apps.is_installed("jazzmin")

    # Links to other pages.

    @property
    def has_other_pages(self) -> bool:
        """Whether there may be rows on other pages."""
        return bool(self.page_links)

    @property
    def page_links(self) -> list[PageLink]:
        """The links to the first page and to the neighbours that exist, in the order of the list."""
        order, page = self.sort_order, self.page
        is_newer_unseen = page.stopped_at is not None and not self.is_down
        is_older_unseen = page.stopped_at is not None and self.is_down
        if order.column:
            first, older = _("First page"), _("Previous page")
            newer = _("Search on") if is_newer_unseen else _("Next page")
        else:
            first = _("Oldest") if order == OLDEST else _("Newest")
            newer = _("Search newer rows") if is_newer_unseen else _("Newer")
            older = _("Search older rows") if is_older_unseen else _("Older")
        links = [(newer, self.newer_url), (older, self.older_url)]
        previous, following = links if order == NEWEST else links[::-1]
        shown = [
            PageLink(first, self.get_query_string() if self.cursors else ""),
            PageLink(*previous, "prev"),
            PageLink(*following, "next"),
        ]
        return [link for link in shown if link.url]

    @property
    def newer_url(self) -> str:
        """The URL of the page with newer rows."""
        return self.page_url(AFTER, self.page.newer)

    @property
    def older_url(self) -> str:
        """The URL of the page with older rows."""
        return self.page_url(BEFORE, self.page.older)

    def page_url(self, name: str, key: Any) -> str:
        """Return the URL of the page with this cursor; empty without one."""
        return self.get_query_string({name: str(key)}) if key is not None else ""
