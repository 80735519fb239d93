"""Tabs above a list: one for each state, with the number of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from ...ops.metrics import Count
from ..formatting import EXACTNESS_NOTES
from .filters import ChoiceFilter
from .sort_orders import SORT


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
        return EXACTNESS_NOTES[self.count.exactness] if self.count is not None else ""


def state_tabs(changelist: Any, state_filter: ChoiceFilter, counts: Mapping[str, Count]) -> Iterator[StateTab]:
    """Yield the tabs for the choices of a filter.

    The links keep the other filters and the search, and drop the sort order, which may not exist for the other state.
    """
    others = dict.fromkeys((*state_filter.expected_parameters(), SORT))
    selected = None if state_filter.is_unknown else state_filter.selected
    is_all = selected is None and not state_filter.is_unknown
    yield StateTab(_("All"), changelist.get_query_string(others), is_all)
    for value, label in state_filter.lookup_choices:
        count = counts.get(value.lower())
        is_empty = count is not None and not count
        is_left_out = value in changelist.sums_of_states or (is_empty and value in changelist.rare_states)
        if value == selected or not is_left_out:
            url = changelist.get_query_string(others | {str(state_filter.parameter_name): value})
            yield StateTab(label, url, value == selected, count)
