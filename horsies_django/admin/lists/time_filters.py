"""The filters by a range of times: when a task was sent, and when an attempt ended and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.lookups import IsNull
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext_lazy as _

from ...core.status import TaskStatus
from ...db.expressions import NowPlus
from ...models import TaskAttempt
from ...ops.keyset import scopes
from ...ops.keyset.criteria import NOTHING, Criteria
from ...ops.keyset.keys import SKEW, KeyRange, id_at
from ..base import queue_database
from .choice_filters import form_of


class TimeRangeFilter(admin.ListFilter):
    """Filters by one of some choices, by a range of times in the active zone, or by both.

    Its parameters are ``name``, ``name_from`` and ``name_to``. A value that can't be parsed matches no row.
    """

    template = "admin/horsies_django/time_range_filter.html"
    #: The first parameter, by which the unfold theme identifies a filter, and all of them.
    parameter_name: ClassVar[str]
    parameter_names: ClassVar[tuple[str, ...]]
    #: The labels of the choices, by their values.
    labels: ClassVar[Mapping[str, Any]]
    #: The parameters that a choice keeps.
    kept: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.parameter_names = (cls.parameter_name, f"{cls.parameter_name}_from", f"{cls.parameter_name}_to")

    def __init__(self, request: HttpRequest, params: dict[str, list[str]], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        texts = [params.pop(name)[-1] if name in params else "" for name in self.parameter_names]
        self.choice = texts[0] if texts[0] in self.labels else None
        self.start, self.end = _parse_moment(texts[1], time.min), _parse_moment(texts[2], time.max)
        values = (self.choice, self.start, self.end)
        self.unreadable = [text for text, value in zip(texts, values, strict=True) if text and value is None]

    @property
    def is_active(self) -> bool:
        """Whether it narrows the list."""
        return bool(self.choice or self.start or self.end or self.unreadable)

    def has_output(self) -> bool:
        """Return True: the filter needs no choices."""
        return True

    def expected_parameters(self) -> list[str | None]:
        """Return the names of its parameters."""
        return list(self.parameter_names)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices, then the values of the range form."""
        clear = dict.fromkeys(self.parameter_names)
        query = changelist.get_query_string(clear)
        yield {"selected": not self.is_active, "query_string": query, "display": _("All")}
        for name, label in self.labels.items():
            changed = {key: value for key, value in clear.items() if key not in self.kept}
            query = changelist.get_query_string(changed | {self.parameter_name: name})
            yield {"selected": name == self.choice, "query_string": query, "display": label}
        replaced = [name for name in self.parameter_names if name != self.parameter_name or not self.kept]
        start, end = _as_input(self.start), _as_input(self.end)
        yield form_of(changelist, *replaced, prefix=self.parameter_name, start=start, end=end)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the choice and the range."""
        return self.criteria.filter(queryset)

    @property
    def description(self) -> str | None:
        """The selection in words; None if nothing is selected."""
        if self.unreadable:
            return f"{self.title}: {', '.join(map(repr, self.unreadable))}"
        words = [str(self.labels[self.choice])] if self.choice else []
        if self.start or self.end:
            words.append(" – ".join((_as_input(moment).replace("T", " ") or "…") for moment in (self.start, self.end)))
        return f"{self.title}: {', '.join(words)}" if words else None

    @property
    def criteria(self) -> Criteria:
        """The criteria of the selection."""
        if self.unreadable:
            return NOTHING
        return self.criteria_of_selection() if self.is_active else Criteria()

    def criteria_of_selection(self) -> Criteria:
        """Return the criteria of a selection that could be parsed."""
        raise NotImplementedError

    def within(self, column: str) -> Q:
        """Return the condition that a column is in the range; its end is not part of it."""
        rows = Q(**{f"{column}__gte": self.start}) if self.start else Q()
        return rows & Q(**{f"{column}__lt": self.end}) if self.end else rows


class SentFilter(TimeRangeFilter):
    """Filters by the last hour, day or week, or by a range of times. Ids contain the time, so it bounds the scan."""

    title = _("time sent")
    parameter_name = "sent"
    labels: ClassVar = {"hour": _("last hour"), "day": _("last 24 hours"), "week": _("last 7 days")}
    _LENGTHS: ClassVar = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}

    def criteria_of_selection(self) -> Criteria:
        """Compare ``sent_at`` by the database's clock. The bounds of the ids have a margin for other clocks."""
        rows, starts = self.within("sent_at"), [self.start] if self.start else []
        if self.choice:
            rows &= Q(sent_at__gte=NowPlus(-self._LENGTHS[self.choice].total_seconds()))
            starts.append(datetime.now(UTC) - self._LENGTHS[self.choice])
        lowest = max((id_at(start - SKEW) for start in starts), default=None)
        return Criteria(rows, bounds=KeyRange(lowest, _highest_id(self.end)))


class EndedFilter(TimeRangeFilter):
    """Finds tasks of which an attempt ended in the range, as ``ended`` says. Charts link to it.

    A task matches by its current end: one that failed and was retried by an operator since then matches no more.
    """

    title = _("attempt ended")
    parameter_name = "ended"
    labels: ClassVar = {
        "any": _("completed, failed or retried"),
        "completed": _("completed"),
        "failed": _("failed"),
        "retried": _("retried"),
        "unsuccessful": _("failed or retried"),
    }
    kept: ClassVar = ("ended_from", "ended_to")

    def has_output(self) -> bool:
        """Return whether it is in use."""
        return self.is_active

    def criteria_of_selection(self) -> Criteria:
        """Match by the outcome. No attempt ends before its task is sent, so the end bounds the ids."""
        completed = Q(status=TaskStatus.COMPLETED) & self.within("completed_at")
        failed = Q(status=TaskStatus.FAILED) & self.within("failed_at")
        attempts = TaskAttempt.objects.using(queue_database()).filter(task=OuterRef("pk"), will_retry=True)
        # A value and not an EXISTS, for which PostgreSQL may read all attempts at once. The first condition spares the
        # tasks that succeeded at once the lookup.
        retry = Subquery(attempts.filter(self.within("finished_at")).order_by("attempt").values("pk")[:1])
        retried = (Q(attempt__gt=1) | Q(retry_count__gt=0)) & Q(IsNull(retry, False))
        rows = {
            "any": completed | failed | retried,
            "completed": completed,
            "failed": failed,
            "retried": retried,
            "unsuccessful": failed | retried,
        }[self.choice or "any"]
        scope = scopes.of_status(TaskStatus.FAILED) if self.choice == "failed" else scopes.TABLE
        return Criteria(rows, scope, KeyRange(None, _highest_id(self.end)))


def _parse_moment(text: str, of_day: time) -> datetime | None:
    """Parse a date or time in the active zone; None if it is neither or out of range."""
    with suppress(ValueError, OverflowError):
        day = parse_date(text)  # first, because parse_datetime reads a date as its midnight
        moment = datetime.combine(day, of_day) if day else parse_datetime(text)
        if moment is None or not 1970 <= moment.year < 9999:
            return None
        return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return None


def _as_input(moment: datetime | None) -> str:
    """Return the value of a ``datetime-local`` input."""
    return "" if moment is None else timezone.localtime(moment).strftime("%Y-%m-%dT%H:%M")


def _highest_id(end: datetime | None) -> UUID | None:
    return id_at(end + SKEW) if end else None
