"""The filter of tasks, and of workflows, by the schedule that has sent them."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import Schedule
from ...ops.keyset import scopes
from ...ops.keyset.scopes import ScanScope
from ..base import queue_database
from ..links import can_view
from .filters import FoldedFilter

#: Digits of a key that every database takes.
_DIGITS: Final = 18


class ScheduleFilter(FoldedFilter):
    """By schedule. There may be thousands, so the one that was asked for is the only choice: a schedule's page asks."""

    title = _("schedule")
    parameter_name = "schedule_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the one that was asked for, by its name for those who may look at it."""
        asked = request.GET.get(str(self.parameter_name), "")
        if not (asked.isdecimal() and asked.isascii() and len(asked) <= _DIGITS):
            return []
        name = None
        if can_view(model_admin.admin_site, request, Schedule):
            rows = Schedule.objects.using(queue_database()).filter(pk=asked)
            name = rows.values_list("name", flat=True).first()
        return [(asked, name or asked)]

    @property
    def scope(self) -> ScanScope:
        """They have an index."""
        return ScanScope(partitions=(Q(schedule_id=self.selected),)) if self.selected else scopes.TABLE
