"""The page of a task name, and the list of names."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS
from django.forms.widgets import Media
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ...core.registry import registry
from ...db.clock import database_now
from ...models import ErrorGroup, Schedule, Task
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...ops.keyset.scan import KeysetScan
from ...ops.metrics.history import COMPLETED, DAY, Period, attempt_history, rollup_clock
from ...ops.metrics.tasks import MAX_NAMES, NAME_ORDERS, busiest_names, errors_of
from ...ops.payload_view.contents import PARTS
from ...ops.task_options import options_in_force
from ..base import queue_database
from ..charts import CHART_CSS, attempt_urls, outcome_chart, time_chart
from ..links import Links
from ..lists.cells import short
from ..periods import chart_title, chosen_period, describe_lag, minutes_ahead, period_tabs
from ..schedules.columns import format_moment, state_badge
from ..schedules.timing_text import describe_timing
from .columns import TaskColumns, complete_rows, with_columns
from .fields import TaskFields

#: Maximum number of tasks and of schedules on a page.
MAX_RUNS: Final = 10
MAX_SCHEDULES: Final = 20


class TaskNamePages(TaskColumns, TaskFields):
    """Adds the pages to the admin of tasks. Users who may view tasks may view them."""

    def get_urls(self) -> list[URLPattern]:
        """Add the list of names and the page of each."""
        return [
            path("names/", self.admin_site.admin_view(self.names_view), name=self._url_name("names")),
            path("names/<path:task_name>/", self.admin_site.admin_view(self.name_view), name=self._url_name("name")),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Link the list of names from the list of tasks."""
        names_url = Links(self.admin_site, request).task_names_url()
        return super().changelist_view(request, {"names_url": names_url, **(extra_context or {})})

    def names_view(self, request: HttpRequest) -> HttpResponse:
        """Render the list of names: those that ran in the last 24 hours, then the other registered ones."""
        self._check_permission(request)
        database = self._database()
        chosen = request.GET.get("sort", "")
        order = chosen if chosen in NAME_ORDERS else NAME_ORDERS[-1]
        clock = rollup_clock(database)
        counts = busiest_names(database, order)
        labels = (_("attempts"), _("failed or retried"), _("run time (p95)"), _("total run time"))
        idle = sorted(
            name
            for name in registry.tasks.keys() - {count.name for count in counts}
            if not name.startswith(ENGINE_TASK_PREFIX)
        )
        context = {
            "title": _("Tasks by name"),
            "counted_until": describe_lag(clock.lag, clock.second),
            "counts": [(count, self._address(count.name)) for count in counts],
            "orders": [(label, f"?sort={key}", key == order) for key, label in zip(NAME_ORDERS, labels, strict=True)],
            "is_cut": len(counts) == MAX_NAMES,
            "max_names": MAX_NAMES,
            "idle": [(name, self._address(name)) for name in idle],
        }
        return self._render(request, "names", context)

    def name_view(self, request: HttpRequest, task_name: str) -> HttpResponse:
        """Render the page of one name, even if nothing is known of it."""
        self._check_permission(request)
        if "\0" in task_name:  # PostgreSQL does not accept it in text
            raise Http404
        links = Links(self.admin_site, request)
        context = {
            "title": task_name,
            "names_url": self._url("names"),
            "tasks_list_url": self._url("changelist"),
            "tasks_url": f"{self._url('changelist')}?{urlencode({'task_name': task_name, 'kind': 'all'})}",
            "running": Task.objects.using(self._database()).active().filter(task_name=task_name).count(),
            "running_url": links.list_url(Task, state="active", task_name=task_name),
            "errors_url": links.list_url(ErrorGroup, task=task_name),
            **self._figures(task_name, chosen_period(request, DAY), links),
            "runs": self._last_runs(request, task_name, links),
            "options": options_in_force(task_name),
            "schedules": self._schedules(task_name, links),
        }
        return self._render(request, "name", context)

    def _figures(self, task_name: str, period: Period, links: Links) -> dict[str, Any]:
        """Return the numbers, charts and errors of a period."""
        database = self._database()
        clock = rollup_clock(database)
        history = attempt_history(
            database, clock.minute, period, ["waits", "runs"], offset=minutes_ahead(), task_name=task_name
        )
        total = history.totals.total()
        urls = attempt_urls(self._url("changelist"), history, task_name=task_name)
        return {
            "counted_until": describe_lag(clock.lag, clock.second),
            "tabs": period_tabs(period),
            "attempts": total,
            "per_minute": total / (period.seconds / 60),
            "failed_percent": 100 * (total - history.totals[COMPLETED]) / total if total else 0,
            **{
                f"{which}_p{percent}": history.percentile(which, percent / 100)
                for which in ("waits", "runs")
                for percent in (50, 95)
            },
            "charts": [
                outcome_chart("attempts", chart_title(_("Attempts"), period), history, urls),
                time_chart("times", chart_title(_("Times"), period), history),
            ],
            "errors": [
                (error, links.to(ErrorGroup, error.group.pk, str(error.group)) if error.group else error.error_code)
                for error in errors_of(database, task_name, period)
            ],
        }

    def _check_permission(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _render(self, request: HttpRequest, page: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name  # as every admin view does
        return TemplateResponse(
            request,
            f"admin/horsies_django/task_names/{page}.html",
            {
                **self.admin_site.each_context(request),
                "opts": self.opts,
                "media": self.media
                + Media(css={"all": [*CHART_CSS, "horsies_django/lists.css", "horsies_django/task_names.css"]}),
                **context,
            },
        )

    def _last_runs(self, request: HttpRequest, task_name: str, links: Links) -> list[dict[str, Any]]:
        """Return the newest tasks of this name among those that one page of the list looks through."""
        rows = self.get_queryset(request).filter(task_name=task_name).defer(*PARTS, "retry_policy")
        tasks = KeysetScan(with_columns(rows)).page().rows[:MAX_RUNS]
        complete_rows(tasks, links)
        return [
            {
                "state": self.shown_state(task),
                "call": self.shown_call(task),
                "run": self.shown_run(task),
                "place": self.shown_place(task),
                "id": links.to(Task, task.pk, short(str(task.pk))),
            }
            for task in tasks
        ]

    def _schedules(self, task_name: str, links: Links) -> list[dict[str, Any]]:
        """Return the schedules that send this task, for users who may view schedules."""
        if not links.can_view(Schedule):
            return []
        database = self._database()
        now = database_now(database)
        rows = Schedule.objects.using(database).filter(task_name=task_name).order_by("name")
        return [
            {
                "link": links.to(Schedule, schedule.pk, schedule.name),
                "timing": describe_timing(schedule.timing, schedule.timezone),
                "state": state_badge(schedule),
                "next": format_moment(schedule.next_run_at if schedule.enabled else None, now),
                "last": format_moment(schedule.last_run_at, now),
            }
            for schedule in rows[:MAX_SCHEDULES]
        ]

    def _address(self, task_name: str) -> str | None:
        """Return the URL of a name's page; None for a name that no URL can hold."""
        try:
            return self._url("name", task_name)
        except NoReverseMatch:
            return None

    def _url(self, page: str, *args: Any) -> str:
        return reverse(f"{self.admin_site.name}:{self._url_name(page)}", args=args)

    def _database(self) -> str:
        return queue_database() or DEFAULT_DB_ALIAS
