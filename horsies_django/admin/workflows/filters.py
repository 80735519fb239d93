"""The filters of the list of workflows."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.workflow_status import WorkflowStatus
from ...ops.keyset.criteria import Criteria
from ...ops.keyset.scopes import TABLE, ScanScope
from ...workflows.definition_registry import definition_registry
from ..lists.choice_filters import ChoiceFilter, FoldedFilter


class WorkflowStateFilter(ChoiceFilter):
    """Filters by status. All but COMPLETED have an index."""

    title = _("state")
    parameter_name = "state"
    options: ClassVar = {
        status.lower(): (
            label,
            Criteria(
                Q(status=status),
                TABLE if status == WorkflowStatus.COMPLETED else ScanScope(partitions=(Q(status=status),)),
            ),
        )
        for status, label in WorkflowStatus.choices
        if status != WorkflowStatus.PENDING  # no workflow stays in it
    }


class TreeFilter(ChoiceFilter):
    """Shows root workflows only, or subworkflows too."""

    title = _("level")
    parameter_name = "level"
    default = "top"

    options: ClassVar = {
        "top": (_("top-level"), Criteria(Q(parent__isnull=True))),
        "sub": (_("subworkflows"), Criteria(Q(parent__isnull=False))),
        "all": (_("all"), Criteria()),
    }


class NameFilter(FoldedFilter):
    """Filters by name: the definitions imported in this process, and the requested one."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names; the search finds workflows with other names."""
        return self.choices_with_selected(
            request, {definition._meta.name for definition in definition_registry.definitions.values()}
        )

    def criteria_of(self, choice: str) -> Criteria:
        """Names have an index."""
        rows = Q(name=choice)
        return Criteria(rows, ScanScope(partitions=(rows,)))
