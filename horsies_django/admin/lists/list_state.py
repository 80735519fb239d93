"""What stands above a list: tabs of states with their counts, chips of active filters, and orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.admin.views.main import SEARCH_VAR
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...ops.keyset import scopes
from ...ops.keyset.scopes import IndexRange
from ...ops.metrics import Count
from ..formatting import exactness_note
from .choice_filters import ChoiceFilter

#: The query parameter of the order.
SORT: Final = "sort"


@dataclass(frozen=True, slots=True)
class SortOrder:
    """An order that an index has, so that a page reads a bounded number of rows.

    It has its value in the URL, its label and, unless it is that of the ids, the column and its index range.
    """

    name: str
    label: Any
    column: str = ""
    index_range: IndexRange | None = None


#: By id, which grows with the time at which a row was sent.
NEWEST: Final = SortOrder("newest", gettext_lazy("newest first"))
OLDEST: Final = SortOrder("oldest", gettext_lazy("oldest first"))
_DUE_SOONEST: Final = SortOrder("due", gettext_lazy("due soonest first"), "enqueued_at", scopes.DEFERRED.ranges[0])
#: The held tasks have no more rows than the workers have slots.
_LONGEST: Final = SortOrder("longest", gettext_lazy("longest running first"), "started_at", scopes.HELD.ranges[0])
#: The orders of the task list that exist in one state only.
OF_STATE: Final = {
    "scheduled": _DUE_SOONEST,
    "aggregating": _DUE_SOONEST,
    "retrying": _DUE_SOONEST,
    "running": _LONGEST,
}


@dataclass(frozen=True, slots=True)
class StateTab:
    """A tab: its label, the URL of the list with that state, and the number of rows, if they were counted."""

    label: Any
    url: str
    is_current: bool
    count: Count | None = None

    @property
    def exactness_note(self) -> Any:
        """A note on how exact the number is."""
        return exactness_note(self.count) if self.count is not None else ""


def state_tabs(changelist: Any, state_filter: ChoiceFilter, counts: Mapping[str, Count]) -> Iterator[StateTab]:
    """Yield the tabs for the choices of a filter.

    The links keep the other filters and the search, and drop the sort order, which may not exist for the other state.
    """
    others = dict.fromkeys((*state_filter.expected_parameters(), SORT))
    selected = None if state_filter.is_unknown else state_filter.selected
    is_all = selected is None and not state_filter.is_unknown
    yield StateTab(_("All"), changelist.get_query_string(others), is_all)
    for value, label in state_filter.lookup_choices:
        count = counts.get(value)
        is_empty = count is not None and not count
        is_left_out = value in changelist.sums_of_states or (is_empty and value in changelist.rare_states)
        if value == selected or not is_left_out:
            url = changelist.get_query_string(others | {str(state_filter.parameter_name): value})
            yield StateTab(label, url, value == selected, count)


@dataclass(frozen=True, slots=True)
class FilterChip:
    """An active filter in words, and the URL of the list without it."""

    words: str
    url: str


def filter_chips(changelist: Any) -> Iterator[FilterChip]:
    """Yield the active filters, except a state that has a tab, and the search."""
    for spec in changelist.active_filters:
        words = str(getattr(spec, "description", None) or spec.title)  # a filter of another library has no description
        yield FilterChip(capfirst(words), changelist.get_query_string(dict.fromkeys(spec.expected_parameters())))
    if changelist.query:
        url = changelist.get_query_string({SEARCH_VAR: None})
        yield FilterChip(_("Search: %s") % changelist.query, url)
