"""The admin of the overview: one page in place of a list and of the pages of rows."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from .base import TaskViewerAdmin, first_backend, replica_note
from .live import answer_unchanged


class OverviewAdmin(TaskViewerAdmin):
    """Shows the overview. Requires permission to view tasks; other sections need their own."""

    class Media:
        css = {"all": ["horsies_django/charts.css", "horsies_django/overview.css", "horsies_django/errors.css"]}
        js = ["horsies_django/live.js"]

    def get_urls(self) -> list[URLPattern]:
        """Return one URL: there are no pages below this one."""
        return [path("", self.admin_site.admin_view(self.changelist_view), name=self.page_name("changelist"))]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Render the page."""
        from .overview import overview_context

        if not self.has_view_permission(request):
            raise PermissionDenied
        backend = first_backend()
        context = {
            "title": _("Overview"),
            "has_backend": backend is not None,
            "replica_note": replica_note(),
            **(overview_context(self.admin_site, request, backend.parsed.options.for_reading) if backend else {}),
            **(extra_context or {}),
        }
        return answer_unchanged(request, self.render(request, "overview", context))
