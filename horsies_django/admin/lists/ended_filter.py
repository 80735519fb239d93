"""The filter by the time at which an attempt ended, and how. Charts link to it; without a link it is not shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.lookups import IsNull
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.status import TaskStatus
from ...models import TaskAttempt
from ...ops.keyset import scopes
from ...ops.keyset.keys import SKEW
from ...ops.keyset.scan import KeyRange
from ...ops.keyset.scopes import ScanScope
from .sent_filter import as_input, id_of, parse_moment

#: The outcomes of an attempt, and the labels of the tasks that had one in the given time.
OUTCOMES: Final = {
    "any": _("completed, failed or retried"),
    "completed": _("completed"),
    "failed": _("failed"),
    "retried": _("retried"),
    "unsuccessful": _("failed or retried"),
}


class EndedFilter(admin.ListFilter):
    """Finds tasks of which an attempt ended from ``ended_from`` until just before ``ended_to``, as ``ended`` says.

    A task matches by its current end: one that failed and was retried by an operator since then matches no more.
    """

    title = _("attempt ended")
    template = "admin/horsies_django/time_range_filter.html"
    #: The name by which the unfold theme identifies a filter.
    parameter_name: ClassVar = "ended"
    parameter_names: ClassVar = ("ended", "ended_from", "ended_to")

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        given = {name: params.pop(name)[-1] for name in self.parameter_names if name in params}
        self.outcome = given["ended"] if given.get("ended") in OUTCOMES else None
        self.start = parse_moment(given.get("ended_from"), time.min)
        self.end = parse_moment(given.get("ended_to"), time.max)
        read = {"ended": self.outcome, "ended_from": self.start, "ended_to": self.end}
        self.unreadable = [text for name, text in given.items() if text and read[name] is None]
        self.is_used = any(given.values())

    def has_output(self) -> bool:
        """Return whether it is in use."""
        return self.is_used

    def expected_parameters(self) -> list[str | None]:
        """Return the names of its parameters."""
        return list(self.parameter_names)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choice that removes it, each outcome in the same time, and the values of the form."""
        clear = dict.fromkeys(self.parameter_names)
        yield {"selected": False, "query_string": changelist.get_query_string(clear), "display": _("All")}
        for name, title in OUTCOMES.items():
            query = changelist.get_query_string({"ended": name})
            yield {"selected": name == (self.outcome or "any"), "query_string": query, "display": title}
        others = [(name, value) for name, value in changelist.params.items() if name not in self.parameter_names[1:]]
        moments = {"start": as_input(self.start), "end": as_input(self.end)}
        yield {"form": True, "prefix": "ended", "others": others, **moments}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the outcome and the time. Values that cannot be parsed match nothing rather than everything."""
        if self.unreadable:
            return queryset.none()
        if not self.is_used:
            return queryset
        completed = Q(status=TaskStatus.COMPLETED) & self._within("completed_at")
        failed = Q(status=TaskStatus.FAILED) & self._within("failed_at")
        attempts = TaskAttempt.objects.using(queryset.db).filter(task=OuterRef("pk"), will_retry=True)
        # A value and not an EXISTS, for which PostgreSQL may read all attempts at once. The first condition spares the
        # tasks that succeeded at once the lookup.
        found = Subquery(attempts.filter(self._within("finished_at")).order_by("attempt").values("pk")[:1])
        retried = (Q(attempt__gt=1) | Q(retry_count__gt=0)) & Q(IsNull(found, False))
        conditions = {
            "completed": completed,
            "failed": failed,
            "retried": retried,
            "unsuccessful": failed | retried,
            "any": completed | failed | retried,
        }
        return queryset.filter(conditions[self.outcome or "any"])

    def _within(self, column: str) -> Q:
        bounds: dict[str, datetime] = {}
        if self.start:
            bounds[f"{column}__gte"] = self.start
        if self.end:
            bounds[f"{column}__lt"] = self.end
        return Q(**bounds)

    @property
    def description(self) -> str | None:
        """The selection in words; None if nothing is selected."""
        if self.unreadable:
            return f"{self.title}: {', '.join(map(repr, self.unreadable))}"
        if not self.is_used:
            return None
        words = OUTCOMES[self.outcome or "any"]
        return f"{self.title}: {words}, {_readable(self.start)} – {_readable(self.end)}"

    @property
    def scope(self) -> ScanScope:
        """Failed tasks have an index."""
        return scopes.of_status(TaskStatus.FAILED) if self.outcome == "failed" else scopes.TABLE

    @property
    def bounds(self) -> KeyRange:
        """No attempt ends before its task is sent: the bound of the ids, with a margin for clock skew."""
        return KeyRange(None, id_of(self.end, SKEW) if self.end else None)


def _readable(moment: datetime | None) -> str:
    return as_input(moment).replace("T", " ") or "…"
