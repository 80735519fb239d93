"""Filters of the list of workflows."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.workflow_status import WorkflowStatus
from ...ops.keyset import scopes
from ...ops.keyset.scopes import Ground
from ...workflows.registry import registry
from ..lists.filters import Filter, FoldedFilter
from ..lists.search import is_id


class StatusFilter(Filter):
    """By status: each but COMPLETED has an index."""

    title = _("status")
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the statuses."""
        return list(WorkflowStatus.choices)

    @property
    def ground(self) -> Ground:
        """Where those are."""
        is_whole = self.chosen in (None, WorkflowStatus.COMPLETED)
        return scopes.WHOLE if is_whole else Ground(lanes=(Q(status=self.chosen),))


class TreeFilter(Filter):
    """Workflows that somebody started, or their subworkflows too."""

    title = _("level")
    parameter_name = "level"
    default = "top"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return what there is."""
        return [("top", _("started by a call")), ("sub", _("subworkflows")), ("all", _("all"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Who gives an id means that one, wherever it is."""
        is_given = self.value() is None and is_id(request.GET.get("q", ""))
        return queryset if is_given else super().queryset(request, queryset)

    def condition(self, chosen: str) -> Q:
        """Only a subworkflow has a parent."""
        return Q() if chosen == "all" else Q(parent__isnull=chosen == "top")


class NameFilter(FoldedFilter):
    """By name: of the definitions that this process has imported, and the one that was asked for."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names; the search finds those of other workflows."""
        return self.with_asked(request, {definition._meta.name for definition in registry.definitions.values()})

    @property
    def ground(self) -> Ground:
        """They have an index."""
        return Ground(lanes=(Q(name=self.chosen),)) if self.chosen else scopes.WHOLE
