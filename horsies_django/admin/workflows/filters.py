"""Filters of the list of workflows."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.workflow_status import WorkflowStatus
from ...ops.keyset import scopes
from ...ops.keyset.scopes import ScanScope
from ...workflows.registry import registry
from ..lists.filters import ChoiceFilter, FoldedFilter
from ..lists.search import is_id


class StatusFilter(ChoiceFilter):
    """By status: each but COMPLETED has an index."""

    title = _("status")
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the statuses."""
        return list(WorkflowStatus.choices)

    @property
    def scope(self) -> ScanScope:
        """Where those are."""
        is_whole = self.selected in (None, WorkflowStatus.COMPLETED)
        return scopes.TABLE if is_whole else ScanScope(partitions=(Q(status=self.selected),))


class TreeFilter(ChoiceFilter):
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
        return self.choices_with_selected(
            request, {definition._meta.name for definition in registry.definitions.values()}
        )

    @property
    def scope(self) -> ScanScope:
        """They have an index."""
        return ScanScope(partitions=(Q(name=self.selected),)) if self.selected else scopes.TABLE
