"""Filters of the list of schedules. Each choice is a part of an index, but for those that most rows are."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..lists.filters import ChoiceFilter
from .state_badge import DISABLED


class StateFilter(ChoiceFilter):
    """Whether they are enabled, and who has disabled them."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        who = ((by.value, words) for by, words in DISABLED.items())
        return [("enabled", _("enabled")), ("disabled", _("disabled")), *who]

    def condition(self, chosen: str) -> Q:
        """Who has disabled it is told of none that is enabled."""
        if chosen == "enabled":
            return Q(enabled=True)
        return Q(enabled=False) if chosen == "disabled" else Q(enabled=False, disabled_by=chosen)


class TroubleFilter(ChoiceFilter):
    """Those whose latest run went wrong before it was sent."""

    title = _("trouble")
    parameter_name = "trouble"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return what there is."""
        return [("error", _("with an error"))]

    def condition(self, chosen: str) -> Q:
        """It has left its words."""
        return ~Q(last_error="")


class SourceFilter(ChoiceFilter):
    """Where they are kept."""

    title = _("source")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the two places."""
        return [("hand", _("by hand")), ("code", _("in code"))]

    def condition(self, chosen: str) -> Q:
        """What is in code has a source."""
        return Q(source="") if chosen == "hand" else ~Q(source="")
