"""Filters of the workflow list."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.workflow_status import WorkflowStatus
from ...ops.keyset import scopes
from ...ops.keyset.scopes import ScanScope
from ...workflows.definition_registry import definition_registry
from ..lists.filters import ChoiceFilter, FoldedFilter
from ..lists.ids import looks_like_id


class WorkflowStatusFilter(ChoiceFilter):
    """Filters by status. All but COMPLETED have an index."""

    title = _("state")
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the statuses."""
        return list(WorkflowStatus.choices)

    @property
    def scope(self) -> ScanScope:
        """The scope of the status."""
        is_whole = self.selected in (None, WorkflowStatus.COMPLETED)
        return scopes.TABLE if is_whole else ScanScope(partitions=(Q(status=self.selected),))


class TreeFilter(ChoiceFilter):
    """Shows root workflows only, or subworkflows too."""

    title = _("level")
    parameter_name = "level"
    default = "top"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("top", _("top-level")), ("sub", _("subworkflows")), ("all", _("all"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Skip the filter if the search is an id or a part of one."""
        is_given = self.value() is None and looks_like_id(request.GET.get("q", ""))
        return queryset if is_given else super().queryset(request, queryset)

    def condition(self, chosen: str) -> Q:
        """Only subworkflows have a parent."""
        return Q() if chosen == "all" else Q(parent__isnull=chosen == "top")


class NameFilter(FoldedFilter):
    """Filters by name: the definitions imported in this process, and the requested one."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names; the search finds workflows with other names."""
        return self.choices_with_selected(
            request, {definition._meta.name for definition in definition_registry.definitions.values()}
        )

    @property
    def scope(self) -> ScanScope:
        """Names have an index."""
        return ScanScope(partitions=(Q(name=self.selected),)) if self.selected else scopes.TABLE
