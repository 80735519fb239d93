"""Heartbeats: the signs of life of those who hold tasks. To look at."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from ..durations import lasting
from ..models import Heartbeat, Task, Worker
from .base import ReadOnlyAdmin, queue_database
from .links import Links
from .readable import moment


class HeartbeatAdmin(ReadOnlyAdmin):
    """Shows the beats that are kept, the newest first."""

    list_display = ("id", "role", "shown_sent_at", "age", "task_link", "sender_link", "hostname", "pid")
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("task",)
    search_help_text = _("The id of a task.")
    fields = ("id", "role", "exact_sent_at", "age", "task_link", "sender_link", "hostname", "pid")
    readonly_fields = fields

    shown_sent_at = moment("sent_at", _("sent at"))
    exact_sent_at = moment("sent_at", _("sent at"), exactly=True)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the database's clock beside the beats, for their age."""
        beats: QuerySet[Any] = super().get_queryset(request)
        return beats.annotate(read_at=Now())  # type: ignore[no-any-return]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find the beats for a task by its id, through the index of the latest beats."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(task=UUID(term)), False
        except ValueError:
            return queryset.none(), False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Let the rows of a list link to what this user may see."""
        changes = super().get_changelist_instance(request)
        links = Links(self.admin_site, request)
        beats = list(changes.result_list)
        links.look_up(Task, {beat.task_id for beat in beats}, queue_database())
        links.look_up(Worker, {beat.sender_id for beat in beats}, queue_database())
        for beat in beats:
            beat.page_links = links
        changes.result_list = beats
        return changes

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Let the page of a beat link to what this user may see."""
        beat = super().get_object(request, object_id, from_field)
        if beat is not None:
            beat.page_links = Links(self.admin_site, request)
        return beat

    @admin.display(description=_("age"))
    def age(self, beat: Any) -> str:
        """How long ago it was, by the database's clock."""
        return lasting(beat.read_at - beat.sent_at)

    @admin.display(description=_("task"))
    def task_link(self, beat: Any) -> SafeString | str:
        """The task, as far as it is still there."""
        return _links(beat).to(Task, beat.task_id)

    @admin.display(description=_("sender"))
    def sender_link(self, beat: Any) -> SafeString | str:
        """The worker that beat."""
        return _links(beat).to(Worker, beat.sender_id)


def _links(beat: Heartbeat) -> Links:
    links: Links = beat.page_links  # type: ignore[attr-defined]  # set as it was read
    return links
