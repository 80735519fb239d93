"""The list of tasks: its tabs, its orders, and what its columns need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Final

from django.utils.translation import gettext as _

from ...ops.keyset.ordered import OrderedPage, OrderedScan, parse_position
from ...ops.keyset.scan import KeysetScan, Page
from ...ops.metrics import Count, count_by_state
from ..formatting import format_time
from ..links import Links
from ..lists.changelist import AFTER, BEFORE, KeysetChangeList, PageLink
from ..lists.list_state import OF_STATE, SortOrder
from ..lists.task_filters import KindFilter, StateFilter
from .columns import complete_held_rows, complete_rows, with_columns

#: The states of tasks that workers hold. Their tabs are refreshed and compare run times.
HELD_STATES: Final = frozenset({"running", "claimed", "active"})


class TaskChangeList(KeysetChangeList):
    """Adds the links, the error and the database's current time to each task."""

    state_filter_class = StateFilter
    sums_of_states: ClassVar = frozenset({"pending", "active"})
    rare_states: ClassVar = frozenset({"aggregating", "blocked", "claimed"})

    def state_counts(self) -> Mapping[str, Count]:
        """Return the number of tasks in each state; nothing if a filter or the search narrows the list.

        Of the filters, only the one that leaves out internal steps is part of the count.
        """
        kinds = next((spec for spec in self.filter_specs if isinstance(spec, KindFilter)), None)
        if self.query or any(spec is not kinds for spec in self.active_filters):
            return {}
        only = None if kinds is None or kinds.selected == "all" else kinds.criteria.rows
        counts = count_by_state(self.root_queryset.db, only)
        not_due = (counts[state] for state in ("scheduled", "aggregating", "retrying"))
        return {**counts, "pending": sum(not_due, counts["pending"])}  # the list has every task of the status

    @property
    def state(self) -> str | None:
        """The selected state."""
        return self.state_filter.selected if self.state_filter is not None else None

    @property
    def is_live(self) -> bool:
        """Whether the rows are refreshed."""
        return self.state in HELD_STATES

    @cached_property
    def sort_orders(self) -> list[SortOrder]:
        """The order of the state, if it has one, and those by id. Of running tasks, the longest running come first."""
        orders = super().sort_orders
        if self.state not in OF_STATE:
            return orders
        order = OF_STATE[self.state]
        return [order, *orders] if self.state == "running" else [*orders, order]

    @cached_property
    def page(self) -> Page:
        """The page's rows with what its columns need."""
        page = Page(rows=self.ordered_page.rows) if self.ordered_page else self.load(self._shown_scan)
        links = Links(self.model_admin.admin_site, self.request)
        complete_rows(page.rows, links)
        if self.is_live:
            complete_held_rows(page.rows, links)
        return page

    @cached_property
    def _shown_scan(self) -> KeysetScan:
        return replace(self.scan, rows=with_columns(self.queryset))

    # An order other than that of the ids.

    @cached_property
    def ordered_page(self) -> OrderedPage | None:
        """The page in the order of a time; None if the list is in the order of the ids."""
        order = self.sort_order
        if order.index_range is None:
            return None
        scan = OrderedScan(scan=self._shown_scan, index_range=order.index_range, column=order.column)
        is_back = BEFORE in self.cursors and AFTER not in self.cursors
        return scan.page(parse_position(self.cursors.get(BEFORE if is_back else AFTER, "")), is_back=is_back)

    @property
    def page_links(self) -> list[PageLink]:
        """The links to other pages, in the order of the list."""
        page = self.ordered_page
        if page is None:
            return super().page_links
        previous = _("Previous page"), self.page_url(BEFORE, page.previous)
        following = _("Search on") if page.scanned_to else _("Next page"), self.page_url(AFTER, page.next)
        return self.links_of(_("First page"), previous, following)

    @property
    def scanned_text(self) -> str:
        """How far the scan came, if it stopped before the page was full."""
        page = self.ordered_page
        if page is None or page.scanned_to is None:
            return super().scanned_text
        return _("Searched rows in this order up to %s.") % format_time(page.scanned_to, exactly=False)
