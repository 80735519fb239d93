"""The admin of heartbeats, read-only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ...core.numbers import format_duration
from ...db.now import Now
from ...models import Heartbeat, Task, Worker
from ...ops.keyset.criteria import NOTHING, Criteria
from ...ops.keyset.keys import is_id
from ...ops.keyset.scopes import ScanScope
from ..base import ReadOnlyAdmin, queue_database
from ..formatting import time_column
from ..links import Links
from ..lists.search_admin import SearchAdmin

if TYPE_CHECKING:
    from ..lists.search import Search


class HeartbeatAdmin(SearchAdmin, ReadOnlyAdmin):
    """Lists the stored heartbeats, newest first."""

    list_display = ("id", "role", "shown_sent_at", "age", "task_link", "sender_link", "hostname", "pid")
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("task",)
    search_help_text = _("The id of a task.")
    fields = ("id", "role", "exact_sent_at", "age", "task_link", "sender_link", "hostname", "pid")
    readonly_fields = fields

    shown_sent_at = time_column("sent_at", _("sent at"))
    exact_sent_at = time_column("sent_at", _("sent at"), exactly=True)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Return nothing, so that the index leaves the page out: workers and tasks say which heartbeats are missing."""
        return {}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Annotate the database's current time, for the heartbeats' age."""
        heartbeats: QuerySet[Any] = super().get_queryset(request)
        annotated: QuerySet[Any] = heartbeats.annotate(read_at=Now())
        return annotated

    def parse_search(self, text: str, database: str) -> Search:
        """Find the heartbeats for a task by its id, which is indexed."""
        from ..lists.search import Search

        if not text.strip():
            return Search()
        if not is_id(text):
            return Search(NOTHING)
        rows = Q(task=UUID(text.strip()))
        return Search(Criteria(rows, ScanScope(partitions=(rows,))))

    def complete_rows(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Prepare the links of each heartbeat."""
        links = Links(self.admin_site, request)
        links.load_existing(Task, {heartbeat.task_id for heartbeat in rows}, queue_database())
        links.load_existing(Worker, {heartbeat.sender_id for heartbeat in rows}, queue_database())
        for heartbeat in rows:
            heartbeat.page_links = links

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Prepare the links of the page."""
        heartbeat = super().get_object(request, object_id, from_field)
        if heartbeat is not None:
            heartbeat.page_links = Links(self.admin_site, request)
        return heartbeat

    @admin.display(description=_("age"))
    def age(self, heartbeat: Any) -> str:
        """The heartbeat's age by the database's clock."""
        return format_duration(heartbeat.read_at - heartbeat.sent_at)

    @admin.display(description=_("task"))
    def task_link(self, heartbeat: Any) -> SafeString | str:
        """The task, linked if it still exists."""
        return _links(heartbeat).to(Task, heartbeat.task_id)

    @admin.display(description=_("sender"))
    def sender_link(self, heartbeat: Any) -> SafeString | str:
        """The worker that sent it."""
        return _links(heartbeat).to(Worker, heartbeat.sender_id)


def _links(heartbeat: Heartbeat) -> Links:
    links: Links = heartbeat.page_links  # type: ignore[attr-defined]  # set when it was read
    return links
