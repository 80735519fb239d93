"""The active filters and the search above a list, each with a link that removes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.views.main import SEARCH_VAR
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from .filters import ChoiceFilter


@dataclass(frozen=True, slots=True)
class FilterChip:
    """An active filter in words, and the URL of the list without it."""

    words: str
    url: str


def filter_chips(changelist: Any) -> Iterator[FilterChip]:
    """Yield the active filters, except a state that has a tab, and the search."""
    for spec in changelist.active_filters:
        url = changelist.get_query_string(dict.fromkeys(spec.expected_parameters()))
        yield FilterChip(capfirst(words_of(spec)), url)
    if changelist.query:
        words = _("Search: %s") % changelist.query
        yield FilterChip(words, changelist.get_query_string({SEARCH_VAR: None}))


def words_of(spec: Any) -> str:
    """Return an active filter in words; for a filter of another library, its title."""
    return str(getattr(spec, "description", None) or spec.title)


def is_active(spec: Any, params: Mapping[str, Any]) -> bool:
    """Return whether a filter narrows the list; a choice that is the default does not."""
    if not any(name in params for name in spec.expected_parameters()):
        return False
    if isinstance(spec, ChoiceFilter) and spec.selected == spec.default and not spec.is_unknown:
        return False
    return bool(getattr(spec, "description", True))
