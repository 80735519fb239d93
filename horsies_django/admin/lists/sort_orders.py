"""The orders of a list. Each reads an existing index, so that a page reads a bounded number of rows in any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext_lazy as _

from ...ops.keyset import scopes
from ...ops.keyset.scopes import IndexRange

#: The query parameter.
SORT: Final = "sort"


@dataclass(frozen=True, slots=True)
class SortOrder:
    """An order: its value in the URL, its label and, unless it is that of the ids, the column and its index range."""

    name: str
    label: Any
    column: str = ""
    index_range: IndexRange | None = None


#: By id, which grows with the time at which a row was sent.
NEWEST: Final = SortOrder("", _("newest first"))
OLDEST: Final = SortOrder("oldest", _("oldest first"))

DUE_SOONEST: Final = SortOrder("due", _("due soonest first"), "enqueued_at", scopes.DEFERRED.ranges[0])
#: The held tasks have no more rows than the workers have slots.
LONGEST_RUNNING: Final = SortOrder("longest", _("longest running first"), "started_at", scopes.HELD.ranges[0])

#: The orders of the task list that exist in one state only.
OF_STATE: Final = {
    "scheduled": DUE_SOONEST,
    "aggregating": DUE_SOONEST,
    "retrying": DUE_SOONEST,
    "running": LONGEST_RUNNING,
}
