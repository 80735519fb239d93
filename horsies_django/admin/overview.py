"""The overview page: warnings, counts, errors, the chart, queues, workers and workflows."""

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

from ..core.durations import format_about
from ..core.numbers import fill_numbers
from ..core.options import Options
from ..core.schedule_enums import DisabledBy
from ..core.workflow_status import WorkflowStatus
from ..models import Queue, Schedule, Worker, Workflow
from ..ops.metrics import Count, MetricsSnapshot, collect
from ..ops.metrics.errors import failure_report
from ..ops.metrics.history import Period, attempt_history
from ..ops.metrics.snapshot import QueueMetrics
from ..ops.metrics.workflows import workflow_progress
from .ages import age
from .base import SinglePageAdmin, first_backend
from .charts import CHART_CSS, Chart, attempt_urls, outcome_chart, small_bars
from .errors.rows import ErrorUrls, error_rows
from .formatting import exactness_note
from .latency import describe_warning
from .links import Links, can_view
from .live import answer_unchanged
from .periods import TEXTS, chart_title, chosen_period, describe_lag, minutes_ahead, period_tabs
from .workers_queues.state_text import format_load, status_label

#: Rows of the errors.
MAX_ERRORS: Final = 5

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
        return exactness_note(self.count)


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
        snapshot, period = collect(options, with_trends=True), chosen_period(request)
        sees = {model: can_view(self.admin_site, request, model) for model in (Queue, Worker, Workflow, Schedule)}
        late = snapshot.latency_warnings if sees[Queue] else ()
        return {
            "snapshot": snapshot,
            "tiles": [self._tile(snapshot, *tile) for tile in TILES],
            "counted_until": describe_lag(snapshot.rollup_lag, snapshot.second),
            "warnings": _warnings(snapshot, sees),
            "late_queues": [
                (warning.queue, self._queue_urls(warning.queue)[0], describe_warning(warning, snapshot.second))
                for warning in late
            ],
            "broken": snapshot.broken_schedules if sees[Schedule] else 0,
            "broken_url": self._broken_schedules_url(),
            "is_empty": not any(snapshot.counts.values()),
            "tabs": period_tabs(period),
            "names_url": Links(self.admin_site, request).task_names_url(),
            "chart": self._chart(options.database, period, snapshot),
            **self._errors(options.database, period),
            **(self._queues(snapshot) if sees[Queue] else {}),
            **(self._workers(snapshot) if sees[Worker] else {}),
            **(self._workflows(options.database, snapshot) if sees[Workflow] else {}),
            "links": {name: self._url(f"{name}_changelist") for name in ("task", "queue", "worker", "workflow")},
        }

    def _chart(self, database: str, period: Period, snapshot: MetricsSnapshot) -> Chart:
        history = attempt_history(database, int(snapshot.second // 60), period, offset=minutes_ahead())
        urls = attempt_urls(self._task_list_url(), history)
        return outcome_chart("attempts", chart_title(_("Attempts"), period), history, urls)

    def _errors(self, database: str, period: Period) -> dict[str, Any]:
        """Return the first rows of the list of errors, in one statement."""
        report, urls = failure_report(database, period, limit=MAX_ERRORS), ErrorUrls(self.admin_site)
        return {
            "report": report,
            "rows": error_rows(report, period, urls),
            "period_words": TEXTS[period.key].words,
            "errors_url": urls.errors(period.key),
        }

    def _queues(self, snapshot: MetricsSnapshot) -> dict[str, Any]:
        return {
            "sees_queues": True,
            "queues": [(queue, *self._queue_urls(queue.name), _trend(queue)) for queue in snapshot.queues],
        }

    def _workers(self, snapshot: MetricsSnapshot) -> dict[str, Any]:
        return {
            "sees_workers": True,
            "workers": [
                (
                    worker,
                    self._page_url("worker", quote(worker.id)),
                    format_load(worker.threads_taken, worker.threads, worker.async_slots_taken, worker.async_slots),
                    status_label(worker, snapshot.second),
                )
                for worker in snapshot.alive
            ],
            "online": len(snapshot.alive) - len(snapshot.not_responding) - len(snapshot.stalled),
            "stalled": len(snapshot.stalled),
            "not_responding": len(snapshot.not_responding),
            "offline": len(snapshot.workers) - len(snapshot.alive),
            "threads": sum(worker.threads or 0 for worker in snapshot.alive),
            "taken": sum(worker.threads_taken for worker in snapshot.alive),
        }

    def _broken_schedules_url(self) -> str | None:
        url = self._url("schedule_changelist")
        return f"{url}?{urlencode({'state': DisabledBy.TIMING.value})}" if url else None

    def _tile(self, snapshot: MetricsSnapshot, key: str, label: Any, hint: Any, query: Mapping[str, str]) -> Tile:
        return Tile(key, label, hint, snapshot.counts[key], self._task_list_url(kind="all", **query))

    def _workflows(self, database: str, snapshot: MetricsSnapshot) -> dict[str, Any]:
        """Return the newest workflows in progress and the newest failed ones, each with its URL."""
        newest, failed = set(snapshot.newest_workflows), set(snapshot.failed_workflows)
        flows = workflow_progress(database, newest | failed)
        return {
            "sees_workflows": True,
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


def _trend(queue: QueueMetrics) -> SafeString:
    """Return the trend of the wait times in the last hour."""
    p95 = queue.trend.p95 if queue.trend else ()
    known = [value for value in p95 if value is not None]
    threshold = queue.status.latency_warning
    if not known:
        return SafeString("")
    texts = {"title": _("p95"), "most": format_about(max(known)), "latest": format_about(known[-1])}
    words = _("%(title)s: at most %(most)s, last %(latest)s.") % texts
    # Short waits stay low.
    return small_bars(p95, "p95", words, threshold.total_seconds() if threshold else None, lowest_top=1.0)


def _warnings(snapshot: MetricsSnapshot, sees: Mapping[Any, bool]) -> list[str]:
    """Return warnings: those of queues, workers and schedules only for users who may view these."""
    warnings = []
    waits = any(snapshot.counts[key] for key in ("due", "scheduled", "aggregating", "retrying"))
    if waits and not snapshot.alive:
        warnings.append(_("No worker is online, so no task runs. Start one: python manage.py horsies_worker"))
    elif snapshot.unserved and sees[Queue]:
        names = {"queues": ", ".join(snapshot.unserved)}
        warnings.append(
            _("No worker serves these queues, or all of their workers are stopping, quiet or stand still: %(queues)s.")
            % names
        )
    if silent := len(snapshot.not_responding) if sees[Worker] else 0:
        text = ngettext(
            "%d worker has stopped sending heartbeats and may be dead.",
            "%d workers have stopped sending heartbeats and may be dead.",
            silent,
        )
        warnings.append(fill_numbers(text, silent))
    if stalled := len(snapshot.stalled) if sees[Worker] else 0:
        text = ngettext(
            "%d worker stands still: its process is stopped, or a task holds the interpreter's lock.",
            "%d workers stand still: their processes are stopped, or a task holds the interpreter's lock.",
            stalled,
        )
        warnings.append(fill_numbers(text, stalled))
    if snapshot.counts["overdue"]:
        warnings.append(_("Some tasks are past their deadline, and the reaper has not expired them yet."))
    if any(snapshot.counts.values()) and snapshot.is_reaper_late:
        warnings.append(
            _(
                "The reaper has not run recently, so tasks of dead workers are not recovered. Start a worker without "
                "--no-reaper, or python manage.py horsies_reaper"
            )
        )
    paused = [queue.name for queue in snapshot.queues if queue.status.is_paused and queue.depth.due]
    if paused and sees[Queue]:
        warnings.append(_("Paused queues with due tasks: %(queues)s.") % {"queues": ", ".join(paused)})
    if snapshot.are_schedules_late and sees[Schedule]:
        warnings.append(
            _(
                "Schedules are overdue, because no scheduler is running. Start a worker without --no-scheduler, or "
                "python manage.py horsies_scheduler"
            )
        )
    return warnings
