"""The filter of tasks and workflows by their schedule."""

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

#: Digits of a key that every database accepts.
_DIGITS: Final = 18


class ScheduleFilter(FoldedFilter):
    """Filters by schedule.

    Only the requested one is a choice, because there may be thousands; schedule pages link here.
    """

    title = _("schedule")
    parameter_name = "schedule_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the requested one, by name if this user may view it."""
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
        """Rows of a schedule have an index."""
        return ScanScope(partitions=(Q(schedule_id=self.selected),)) if self.selected else scopes.TABLE
