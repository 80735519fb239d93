"""Filters of the schedule list. All choices but the most common ones use an index."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..lists.filters import ChoiceFilter
from .state_badge import DISABLED


class ScheduleStateFilter(ChoiceFilter):
    """Filters by enabled or by the reason for being disabled."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        reasons = ((by.value, words) for by, words in DISABLED.items())
        return [("enabled", _("enabled")), ("disabled", _("disabled")), *reasons]

    def condition(self, chosen: str) -> Q:
        """Match enabled schedules, or disabled ones by reason."""
        if chosen == "enabled":
            return Q(enabled=True)
        return Q(enabled=False) if chosen == "disabled" else Q(enabled=False, disabled_by=chosen)


class ScheduleProblemFilter(ChoiceFilter):
    """Finds schedules whose latest run could not be sent."""

    title = _("problems")
    parameter_name = "trouble"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choice."""
        return [("error", _("with an error"))]

    def condition(self, chosen: str) -> Q:
        """Match schedules with an error."""
        return ~Q(last_error="")


class SourceFilter(ChoiceFilter):
    """Filters by where schedules are declared."""

    title = _("source")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the two choices."""
        return [("hand", _("created by an operator")), ("code", _("defined in code"))]

    def condition(self, chosen: str) -> Q:
        """Schedules declared in code have a source."""
        return Q(source="") if chosen == "hand" else ~Q(source="")
