"""Filters by waiting time, running time, due time and number of attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...db.expressions import NowPlus
from ...db.now import Now
from ...models.filters import due_before
from ...ops.keyset import scopes
from ...ops.keyset.scopes import ScanScope
from .filters import FoldedFilter

_ENDS: Final = ("completed_at", "failed_at", "cancelled_at", "expired_at")


class DurationFilter(FoldedFilter):
    """Filters by a duration: longer than one of the choices."""

    #: Parameter value: (seconds, label).
    LENGTHS: Final = {
        "1s": (1, _("longer than a second")),
        "10s": (10, _("longer than ten seconds")),
        "1m": (60, _("longer than a minute")),
        "10m": (600, _("longer than ten minutes")),
        "1h": (3_600, _("longer than an hour")),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the durations."""
        return [(name, words) for name, (_seconds, words) in self.LENGTHS.items()]

    def threshold(self, chosen: str, *ends: str) -> Any:
        """Return the latest start at which the duration would be exceeded at the first non-null end, or now."""
        return Coalesce(*ends, Now()) - Value(timedelta(seconds=self.LENGTHS[chosen][0]))


class WaitedFilter(DurationFilter):
    """Filters by the time from being due to the start, or to now."""

    title = _("wait time")
    parameter_name = "waited"

    def condition(self, chosen: str) -> Q:
        """Measure to the start; for tasks that never started, to the end."""
        return due_before(self.threshold(chosen, "started_at", *_ENDS))


class RanFilter(DurationFilter):
    """Filters by the running time, or the running time so far."""

    title = _("run time")
    parameter_name = "ran"

    def condition(self, chosen: str) -> Q:
        """Measure to the end."""
        return Q(started_at__lt=self.threshold(chosen, *_ENDS))


class DueFilter(FoldedFilter):
    """Filters by when tasks are or were due, relative to now."""

    title = _("due time")
    parameter_name = "due"
    _TIMES: Final = {
        "last_hour": (-3_600, 0, _("in the last hour")),
        "last_day": (-86_400, 0, _("in the last 24 hours")),
        "next_hour": (0, 3_600, _("in the next hour")),
        "next_day": (0, 86_400, _("in the next 24 hours")),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the times."""
        return [(name, words) for name, (_since, _until, words) in self._TIMES.items()]

    def condition(self, chosen: str) -> Q:
        """Match a due time between two times."""
        since, until, _words = self._TIMES[chosen]
        return Q(enqueued_at__gte=NowPlus(since), enqueued_at__lt=NowPlus(until))

    @property
    def scope(self) -> ScanScope:
        """Tasks that are due later are pending."""
        return scopes.DEFERRED if (self.selected or "").startswith("next") else scopes.TABLE


class AttemptsFilter(FoldedFilter):
    """Filters by the number of attempts."""

    title = _("attempts")
    parameter_name = "attempts"
    _NUMBERS: Final = {
        "none": (Q(attempt=0), _("none")),
        "one": (Q(attempt=1), _("one")),
        "more": (Q(attempt__gt=1), _("more than one")),
        "all": (Q(attempt__gt=F("max_retries")), _("all used up")),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [(name, words) for name, (_rows, words) in self._NUMBERS.items()]

    def condition(self, chosen: str) -> Q:
        """Return the condition for the number."""
        return self._NUMBERS[chosen][0]
