"""The admin of heartbeats, read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import Heartbeat
from ...ops.keyset.criteria import NOTHING, Criteria
from ...ops.keyset.keys import is_id
from ...ops.keyset.scopes import ScanScope
from ..base import ReadOnlyAdmin
from ..formatting import time_column
from ..lists.search_admin import SearchAdmin

if TYPE_CHECKING:
    from ..lists.search import Search


class HeartbeatAdmin(SearchAdmin, ReadOnlyAdmin):
    """Lists the stored heartbeats, newest first."""

    list_display = ("id", "role", "shown_sent_at", "shown_task", "sender_id", "hostname", "pid")
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("task",)
    search_help_text = _("The id of a task.")
    fields = ("id", "role", "exact_sent_at", "shown_task", "sender_id", "hostname", "pid")
    readonly_fields = fields

    shown_sent_at = time_column("sent_at", _("sent at"))
    exact_sent_at = time_column("sent_at", _("sent at"), exactly=True)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Return nothing, so that the index leaves the page out: workers and tasks say which heartbeats are missing."""
        return {}

    def parse_search(self, text: str, database: str) -> Search:
        """Find the heartbeats for a task by its id, which is indexed."""
        from ..lists.search import Search

        if not text.strip():
            return Search()
        if not is_id(text):
            return Search(NOTHING)
        rows = Q(task=UUID(text.strip()))
        return Search(Criteria(rows, ScanScope(partitions=(rows,))))

    @admin.display(description=_("task"))
    def shown_task(self, heartbeat: Heartbeat) -> str:
        """The id of the task."""
        return str(heartbeat.task_id)
