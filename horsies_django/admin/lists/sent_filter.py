"""The filter by the time a task was sent. Ids contain that time, so it bounds the scan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext_lazy as _

from ...db.expressions import NowPlus
from ...ops.keyset import scopes
from ...ops.keyset.keys import SKEW, id_at
from ...ops.keyset.scan import KeyRange
from ...ops.keyset.scopes import ScanScope

SENT_WITHIN: Final = {
    "hour": (_("last hour"), timedelta(hours=1)),
    "day": (_("last 24 hours"), timedelta(days=1)),
    "week": (_("last 7 days"), timedelta(days=7)),
}


class SentFilter(admin.ListFilter):
    """Filters by the last hour, day or week, or by a range of times."""

    title = _("time sent")
    template = "admin/horsies_django/time_range_filter.html"
    #: The name by which the unfold theme identifies a filter.
    parameter_name: ClassVar = "sent"
    parameter_names: ClassVar = ("sent", "sent_from", "sent_to")

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        given = {name: params.pop(name)[-1] for name in self.parameter_names if name in params}
        self.period = given["sent"] if given.get("sent") in SENT_WITHIN else None
        self.start = parse_moment(given.get("sent_from"), time.min)
        self.end = parse_moment(given.get("sent_to"), time.max)
        read = {"sent": self.period, "sent_from": self.start, "sent_to": self.end}
        self.unreadable = [text for name, text in given.items() if text and read[name] is None]

    def has_output(self) -> bool:
        """Return True: the filter needs no choices."""
        return True

    def expected_parameters(self) -> list[str | None]:
        """Return the names of its parameters."""
        return list(self.parameter_names)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the periods, then the values of the range form."""
        clear = dict.fromkeys(self.parameter_names)
        is_any = not (self.period or self.start or self.end)
        yield {"selected": is_any, "query_string": changelist.get_query_string(clear), "display": _("All")}
        for name, (title, _length) in SENT_WITHIN.items():
            query = changelist.get_query_string(clear | {"sent": name})
            yield {"selected": name == self.period, "query_string": query, "display": title}
        others = [(name, value) for name, value in changelist.params.items() if name not in self.parameter_names]
        moments = {"start": as_input(self.start), "end": as_input(self.end)}
        yield {"form": True, "prefix": "sent", "others": others, **moments}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by ``sent_at``, by the database's clock.

        Values that cannot be parsed match nothing rather than everything.
        """
        if self.unreadable:
            return queryset.none()
        rows = Q()
        if self.period:
            rows &= Q(sent_at__gte=NowPlus(-SENT_WITHIN[self.period][1].total_seconds()))
        if self.start:
            rows &= Q(sent_at__gte=self.start)
        if self.end:
            rows &= Q(sent_at__lte=self.end)
        return queryset.filter(rows)

    @property
    def description(self) -> str | None:
        """The selection in words; None if nothing is selected."""
        if self.unreadable:
            return f"{self.title}: {', '.join(map(repr, self.unreadable))}"
        if self.period:
            return f"{self.title}: {SENT_WITHIN[self.period][0]}"
        if not (self.start or self.end):
            return None
        return f"{self.title}: {as_input(self.start) or '…'} – {as_input(self.end) or '…'}"

    @property
    def scope(self) -> ScanScope:
        """The whole table."""
        return scopes.TABLE

    @property
    def bounds(self) -> KeyRange:
        """The bounds of ids from that time, with a margin for clock skew."""
        start = datetime.now(UTC) - SENT_WITHIN[self.period][1] if self.period else None
        starts = [moment for moment in (start, self.start) if moment]
        return KeyRange(
            max((id_of(moment, -SKEW) for moment in starts), default=None), id_of(self.end, SKEW) if self.end else None
        )


def parse_moment(text: str | None, of_day: time) -> datetime | None:
    """Parse a date or time in the active zone; None if it is neither or out of range."""
    with suppress(ValueError, OverflowError):
        day = parse_date(text or "")  # first, because parse_datetime reads a date as its midnight
        moment = datetime.combine(day, of_day) if day else parse_datetime(text or "")
        if moment is None or not 1970 <= moment.year < 9999:
            return None
        return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return None


def as_input(moment: datetime | None) -> str:
    """Return the value of a ``datetime-local`` input."""
    if moment is None:
        return ""
    return timezone.localtime(moment).strftime("%Y-%m-%dT%H:%M")


def id_of(moment: datetime, skew: timedelta) -> UUID:
    """Return the lowest id of a task that was sent ``skew`` after that time."""
    return id_at(moment + skew)
