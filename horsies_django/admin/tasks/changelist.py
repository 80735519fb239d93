"""The change list of tasks."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from uuid import UUID

from django.db.models.functions import Now
from django.urls import NoReverseMatch, reverse

from ...models import Workflow
from ...ops.keyset.scan import Page
from ...ops.payload_view.excerpt import with_short_arguments
from ..lists import search
from ..lists.changelist import KeysetChangeList
from ..lists.search import Search


class TaskChangeList(KeysetChangeList):
    """Knows of each task the address of its workflow, and the database's clock."""

    def parse_search(self, text: str) -> Search:
        """An id, the beginning of a name, or what a qualifier says."""
        return search.parse_search(text)

    @cached_property
    def page(self) -> Page:
        """The rows of the page, with what its columns need."""
        rows = with_short_arguments(self.queryset.annotate(seen_at=Now()))
        page = replace(self.scan, rows=rows).page(before=self.before, after=self.after)
        for row in page.rows:
            row.workflow_address = self._workflow_url(row.workflow_id)
        return page

    @cached_property
    def _can_view_workflows(self) -> bool:
        site = self.model_admin.admin_site
        if not site.is_registered(Workflow):
            return False
        allowed: bool = site.get_model_admin(Workflow).has_view_permission(self.request)
        return allowed

    def _workflow_url(self, key: UUID | None) -> str:
        if key is None or not self._can_view_workflows:
            return ""
        try:
            return reverse(f"{self.model_admin.admin_site.name}:horsies_django_workflow_change", args=[key])
        except NoReverseMatch:
            return ""
