"""The filter of tasks by error group."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import ErrorGroup
from ...models.error_group import is_fingerprint
from ...ops.keyset import scopes
from ...ops.keyset.scopes import ScanScope
from ..base import queue_database
from .filters import FoldedFilter


class ErrorGroupFilter(FoldedFilter):
    """Filters by error group: tasks whose last attempt failed with this error, failed and retrying ones.

    Only the requested one is a choice, because there may be thousands; pages of errors link here.
    """

    title = _("error")
    parameter_name = "fingerprint"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the requested group by its name."""
        asked = request.GET.getlist(str(self.parameter_name))[-1:]
        if not asked or not is_fingerprint(asked[0]):
            return []
        group = ErrorGroup.objects.using(queue_database()).filter(pk=asked[0]).first()
        return [(asked[0], str(group or asked[0]))]

    @property
    def scope(self) -> ScanScope:
        """Tasks of a group have an index."""
        return scopes.of_error_group(self.selected) if self.selected else scopes.TABLE

    def narrow(self, scope: ScanScope) -> ScanScope:
        """Scan the group whatever the other filters are: it is smaller than all failed or all retrying tasks."""
        return self.scope if self.selected else scope
