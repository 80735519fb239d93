"""The filter of tasks by the limit that they wait for."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...core.status import TaskStatus
from ...models.claim.query import not_past_deadline
from ...ops.keyset import scopes
from ...ops.keyset.scopes import IndexRange, ScanScope
from .filters import FoldedFilter

#: Maximum characters of a key.
_LENGTH: Final = 255


def _blocked_by(key: str) -> Q:
    """Return the condition of the index of blocked tasks."""
    return Q(status=TaskStatus.PENDING, blocked=True, limit_key=key)


class LimitFilter(FoldedFilter):
    """Filters tasks that wait for a place of a limit. Only the requested one is a choice; limits' pages link here."""

    title = _("waits for limit")
    parameter_name = "waits_for_limit"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the requested key."""
        asked = request.GET.get(str(self.parameter_name), "")
        return [(asked, asked)] if 0 < len(asked) <= _LENGTH and "\0" not in asked else []

    def condition(self, chosen: str) -> Q:
        """Leave out tasks past their deadline, which no limit releases any more."""
        return _blocked_by(chosen) & not_past_deadline()

    @property
    def scope(self) -> ScanScope:
        """The tasks that wait for a limit have an index."""
        if not self.selected:
            return scopes.TABLE
        return ScanScope((IndexRange(_blocked_by(self.selected), ("-priority", "enqueued_at", "pk")),))
