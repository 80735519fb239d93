"""The admin of error groups: what fails most, and the page of each group."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ..base import TaskViewerAdmin, read_database, replica_note
from ..formatting import COPY_CSS, COPY_JS
from ..links import Links
from ..live import answer_unchanged


class ErrorGroupAdmin(TaskViewerAdmin):
    """Lists the errors with the most failed attempts. Requires permission to view tasks."""

    class Media:
        css = {
            "all": [
                *COPY_CSS["all"],
                "horsies_django/charts.css",
                "horsies_django/overview.css",
                "horsies_django/errors.css",
            ]
        }
        js = ["horsies_django/live.js", *COPY_JS]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Render *What fails most* in a period, of one task or queue if the address names it."""
        from ...ops.metrics.errors import failing_places, failure_report
        from ..periods import TEXTS, chosen_period, counted_until, period_tabs
        from .rows import error_rows, errors_url, options

        if not self.has_view_permission(request):
            raise PermissionDenied
        database, period, links = self._database, chosen_period(request), Links(self.admin_site, request)
        task, queue = (request.GET.get(name, "").replace("\0", "") for name in ("task", "queue"))
        report = failure_report(database, period, task=task, queue=queue, with_details=True)
        places = failing_places(database, period)
        filters = {name: value for name, value in (("task", task), ("queue", queue)) if value}
        context = {
            "title": _("Errors"),
            "replica_note": replica_note(),
            **counted_until(database),
            "report": report,
            "rows": error_rows(report, period, links),
            "period": period,
            "period_words": TEXTS[period.key].words,
            "tabs": period_tabs(period, filters),
            "filters": filters,
            "clear_url": errors_url(links, period),
            "task_url": links.task_name_url(task),
            "task_options": options(places.tasks, task),
            "queue_options": options(places.queues, queue),
        }
        return self._render(request, "list", context, extra_context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Render the page of a group, which is read-only."""
        from ...ops.error_groups import find_group
        from .group_page import group_context

        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        fingerprint = unquote(object_id)
        group = find_group(self._database, fingerprint)
        if group is None:
            return self.not_found(request, fingerprint)
        return self._render(request, "group", group_context(self.admin_site, request, group), extra_context)

    @property
    def _database(self) -> str:
        return read_database() or "default"

    def _render(self, request: HttpRequest, page: str, context: dict[str, Any], extra: Any) -> HttpResponse:
        return answer_unchanged(request, self.render(request, f"errors/{page}", {**context, **(extra or {})}))
