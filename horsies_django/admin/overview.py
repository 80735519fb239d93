"""The overview page: counts, charts, queues, workers, workflows and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..core.numbers import fill_numbers
from ..core.options import Options
from ..core.schedule_enums import DisabledBy
from ..core.workflow_status import WorkflowStatus
from ..models import Queue, Schedule, Worker, Workflow
from ..ops.metrics import Count, MetricsSnapshot, collect
from ..ops.metrics.schedules import next_schedules
from ..ops.metrics.snapshot import QueueMetrics
from ..ops.metrics.workflows import workflow_progress
from .ages import age, age_at
from .base import SinglePageAdmin, backends_on, first_backend
from .charts import CHART_CSS, sparkline
from .counted_until import describe_lag
from .errors.overview import failing_context
from .formatting import EXACTNESS_NOTES
from .latency import describe_warning
from .links import Links, can_view
from .live import answer_unchanged
from .overview_chart import ChartControls
from .schedules.columns import format_dotted_path
from .schedules.timing_text import describe_timing
from .workers_queues.state_text import format_load, status_label

#: The tiles: the count, its label, the note below, and the filter of the task list that shows the same tasks.
TILES: Final[tuple[tuple[str, Any, Any, Mapping[str, str]], ...]] = (
    ("due", gettext_lazy("Due"), gettext_lazy("waiting for a worker"), {"state": "due"}),
    ("blocked", gettext_lazy("Blocked"), gettext_lazy("by a limit or a paused workflow"), {"state": "blocked"}),
    ("active", gettext_lazy("Active"), gettext_lazy("claimed or running"), {"state": "active"}),
    ("scheduled", gettext_lazy("Scheduled"), gettext_lazy("to run later"), {"state": "scheduled"}),
    ("retrying", gettext_lazy("Retrying"), gettext_lazy("waiting for the next attempt"), {"state": "retrying"}),
    ("overdue", gettext_lazy("Overdue"), gettext_lazy("past the deadline"), {"trouble": "overdue"}),
    ("completed", gettext_lazy("Completed"), "", {"state": "completed"}),
    ("failed", gettext_lazy("Failed"), "", {"state": "failed"}),
    ("cancelled", gettext_lazy("Cancelled"), "", {"state": "cancelled"}),
    ("expired", gettext_lazy("Expired"), "", {"state": "expired"}),
)


@dataclass(frozen=True, slots=True)
class Tile:
    """A number, its label, and the URL of the list behind it."""

    key: str
    label: Any
    hint: Any
    count: Count
    url: str | None

    @property
    def exactness_note(self) -> Any:
        """A note on how exact the number is."""
        return EXACTNESS_NOTES[self.count.exactness]


class OverviewAdmin(SinglePageAdmin):
    """Shows the overview in place of a list. Requires permission to view tasks; other sections need their own."""

    class Media:
        css = {"all": [*CHART_CSS, "horsies_django/overview.css", "horsies_django/errors.css"]}
        js = ["horsies_django/live.js"]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Render the page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        backend = first_backend()
        context = {
            **self.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": self.opts,
            "media": self.media,
            "has_backend": backend is not None,
            **(self._sections(request, backend.parsed.options) if backend else {}),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name  # as every admin view does
        return answer_unchanged(request, TemplateResponse(request, "admin/horsies_django/overview.html", context))

    def _sections(self, request: HttpRequest, options: Options) -> dict[str, Any]:
        snapshot = collect(options, with_trends=True)
        return self._metrics(request, options, snapshot) | self._schedules(request, options.database)

    def _metrics(self, request: HttpRequest, options: Options, snapshot: MetricsSnapshot) -> dict[str, Any]:
        sees_queues, sees_workers, sees_workflows = (
            can_view(self.admin_site, request, model) for model in (Queue, Worker, Workflow)
        )
        controls = ChartControls.from_request(request, sees_queues=sees_queues)
        return {
            "snapshot": snapshot,
            "names_url": Links(self.admin_site, request).task_names_url(),
            "tiles": [self._tile(snapshot, *tile) for tile in TILES],
            "counted_until": describe_lag(snapshot.rollup_lag, snapshot.second),
            "warnings": _warnings(snapshot, sees_queues=sees_queues, sees_workers=sees_workers),
            "is_empty": not any(snapshot.counts.values()),
            "controls": controls,
            "menus": self._chart_menus(controls, snapshot),
            "chart": controls.chart(options.database, int(snapshot.second // 60), self._task_list_url),
            "late_queues": [
                (late.queue, self._queue_urls(late.queue)[0], describe_warning(late, snapshot.second))
                for late in (snapshot.latency_warnings if sees_queues else ())
            ],
            "queues": [(queue, *self._queue_urls(queue.name), _trend(queue)) for queue in snapshot.queues]
            if sees_queues
            else [],
            "failing": failing_context(self.admin_site, request, options.database, controls.query(period="")),
            "sees_queues": sees_queues,
            "sees_workers": sees_workers,
            "sees_workflows": sees_workflows,
            "workers": [
                (
                    one,
                    self._page_url("worker", quote(one.id)),
                    format_load(one.threads_taken, one.threads, one.async_slots_taken, one.async_slots),
                    status_label(one, snapshot.second),
                )
                for one in snapshot.alive
            ]
            if sees_workers
            else [],
            "online": len(snapshot.alive) - len(snapshot.not_responding) - len(snapshot.stalled),
            "stalled": len(snapshot.stalled),
            "not_responding": len(snapshot.not_responding),
            "offline": len(snapshot.workers) - len(snapshot.alive),
            "threads": sum(one.threads or 0 for one in snapshot.alive),
            "taken": sum(one.threads_taken for one in snapshot.alive),
            **(self._workflows(options.database, snapshot) if sees_workflows else {}),
            "links": {
                name: self._url(f"{name}_changelist")
                for name in ("task", "queue", "worker", "workflow", "schedule", "runningnow")
            },
        }

    def _schedules(self, request: HttpRequest, database: str) -> dict[str, Any]:
        """Return the schedules section for users who may view schedules."""
        if not can_view(self.admin_site, request, Schedule):
            return {}
        found = next_schedules(database, backends_on(database))
        broken = self._url("schedule_changelist")
        return {
            "sees_schedules": True,
            "schedules": [
                (
                    one,
                    self._page_url("schedule", one.id),
                    format_dotted_path(one.runs),
                    describe_timing(one.timing, one.timezone),
                    age_at(-one.due_in, found.second),
                )
                for one in found.next
            ],
            "late_schedules": found.is_late,
            "broken": found.broken,
            "broken_url": f"{broken}?{urlencode({'state': DisabledBy.TIMING.value})}" if broken else None,
        }

    def _chart_menus(self, controls: ChartControls, snapshot: MetricsSnapshot) -> list[tuple[str, Any, str, list[str]]]:
        """Return the menus that filter the chart: parameter, label, selected value and values."""
        menus = [("task", _("Task"), controls.task, controls.tasks)]
        if controls.sees_queues:
            names = controls.queues(queue.name for queue in snapshot.queues)
            menus.insert(0, ("queue", _("Queue"), controls.queue, names))
        return menus

    def _tile(self, snapshot: MetricsSnapshot, key: str, label: Any, hint: Any, query: Mapping[str, str]) -> Tile:
        return Tile(key, label, hint, snapshot.counts[key], self._task_list_url(kind="all", **query))

    def _workflows(self, database: str, snapshot: MetricsSnapshot) -> dict[str, Any]:
        """Return the newest workflows in progress and the newest failed ones, each with its URL."""
        newest, failed = set(snapshot.newest_workflows), set(snapshot.failed_workflows)
        flows = workflow_progress(database, newest | failed)
        return {
            "workflows": [
                (flow, self._page_url("workflow", flow.id), age(flow.age, flow.sent_at))
                for flow in flows
                if flow.id in newest
            ],
            "failed_workflows": [
                (flow, self._page_url("workflow", flow.id), age(flow.ended_ago or 0.0, flow.ended_at))
                for flow in flows
                if flow.id in failed and flow.status == WorkflowStatus.FAILED and flow.ended_at is not None
            ],
        }

    def _queue_urls(self, queue: str) -> tuple[str | None, str | None, str | None]:
        """Return the URL of a queue's page, and those of its due and of its blocked tasks."""
        due, blocked = (self._task_list_url(queue_name=queue, state=state, kind="all") for state in ("due", "blocked"))
        return self._page_url("queue", quote(f"~{queue}")), due, blocked

    def _task_list_url(self, **query: str) -> str | None:
        """Return the URL of the filtered task list."""
        url = self._url("task_changelist")
        return f"{url}?{urlencode(query)}" if url and query else url

    def _page_url(self, model: str, key: Any) -> str | None:
        return self._url(f"{model}_change", key)

    def _url(self, name: str, *args: Any) -> str | None:
        """Return a URL on this site; None if the site has no such page."""
        try:
            return reverse(f"admin:{self.opts.app_label}_{name}", args=args, current_app=self.admin_site.name)
        except NoReverseMatch:
            return None


def _trend(queue: QueueMetrics) -> SafeString | str:
    """Return the trend of the wait times in the last hour."""
    if queue.trend is None:
        return ""
    threshold = queue.status.latency_warning
    return sparkline(_("p95"), queue.trend.p95, threshold.total_seconds() if threshold else None)


def _warnings(snapshot: MetricsSnapshot, *, sees_queues: bool, sees_workers: bool) -> list[str]:
    """Return warnings about what needs attention; only users who may view queues or workers read of these."""
    warnings = []
    waits = any(snapshot.counts[key] for key in ("due", "scheduled", "aggregating", "retrying"))
    if waits and not snapshot.alive:
        warnings.append(_("No worker is online, so no task runs. Start one: python manage.py horsies_worker"))
    elif snapshot.unserved and sees_queues:
        names = {"queues": ", ".join(snapshot.unserved)}
        warnings.append(
            _("No worker serves these queues, or all of their workers are stopping, quiet or stand still: %(queues)s.")
            % names
        )
    if silent := len(snapshot.not_responding) if sees_workers else 0:
        warnings.append(
            fill_numbers(
                ngettext(
                    "%d worker has stopped sending heartbeats and may be dead.",
                    "%d workers have stopped sending heartbeats and may be dead.",
                    silent,
                ),
                silent,
            )
        )
    if stalled := len(snapshot.stalled) if sees_workers else 0:
        warnings.append(
            fill_numbers(
                ngettext(
                    "%d worker stands still: its process is stopped, or a task holds the interpreter's lock.",
                    "%d workers stand still: their processes are stopped, or a task holds the interpreter's lock.",
                    stalled,
                ),
                stalled,
            )
        )
    if snapshot.counts["overdue"]:
        warnings.append(_("Some tasks are past their deadline, and the reaper has not expired them yet."))
    if any(snapshot.counts.values()) and snapshot.is_reaper_late:
        warnings.append(
            _(
                "The reaper has not run recently, so tasks of dead workers are not recovered. Start a worker without "
                "--no-reaper, or python manage.py horsies_reaper"
            )
        )
    paused = [queue.name for queue in snapshot.queues if queue.is_paused and queue.depth.due]
    if paused and sees_queues:
        warnings.append(_("Paused queues with due tasks: %(queues)s.") % {"queues": ", ".join(paused)})
    return warnings
