"""The overview page: warnings, counts, errors, the chart, queues, workers and workflows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..core.numbers import fill_numbers, format_about, format_lower_bound
from ..core.options import Options
from ..core.workflow_status import WorkflowStatus
from ..models import Queue, Schedule, Task, Worker, Workflow
from ..models.schedule import DisabledBy
from ..ops.metrics import MetricsSnapshot, collect
from ..ops.metrics.errors import failure_report
from ..ops.metrics.history import Period, attempt_history
from ..ops.metrics.snapshot import QueueMetrics
from ..ops.metrics.workflows import workflow_progress
from .ages import age
from .attempt_charts import outcome_chart
from .charts import small_bars
from .errors.rows import error_rows, errors_url
from .formatting import exactness_note
from .latency import describe_warning
from .links import Links
from .periods import TEXTS, chart_title, chosen_period, describe_lag, minutes_ahead, period_tabs
from .workers_queues.state_text import format_load, status_label

#: Rows of the errors and of the workers.
MAX_ERRORS: Final = 5
MAX_WORKERS: Final = 20

#: The tiles: the count, its label, the note below, and the filter of the task list that shows the same tasks.
TILES: Final[tuple[tuple[str, Any, Any, Mapping[str, str]], ...]] = (
    ("due", gettext_lazy("Due"), gettext_lazy("waiting for a worker"), {"state": "due"}),
    ("blocked", gettext_lazy("Blocked"), gettext_lazy("by a limit or a paused workflow"), {"state": "blocked"}),
    ("active", gettext_lazy("Active"), gettext_lazy("claimed or running"), {"state": "active"}),
    ("scheduled", gettext_lazy("Scheduled"), gettext_lazy("to run later"), {"state": "scheduled"}),
    ("retrying", gettext_lazy("Retrying"), gettext_lazy("waiting for the next attempt"), {"state": "retrying"}),
    ("awaiting", gettext_lazy("Awaiting"), gettext_lazy("begun, waiting without a slot"), {"state": "awaiting"}),
    ("overdue", gettext_lazy("Overdue"), gettext_lazy("past the deadline"), {"trouble": "overdue"}),
    ("completed", gettext_lazy("Completed"), "", {"state": "completed"}),
    ("failed", gettext_lazy("Failed"), "", {"state": "failed"}),
    ("cancelled", gettext_lazy("Cancelled"), "", {"state": "cancelled"}),
    ("expired", gettext_lazy("Expired"), "", {"state": "expired"}),
)


def overview_context(site: AdminSite, request: HttpRequest, options: Options) -> dict[str, Any]:
    """Return what the template of the page needs."""
    snapshot, period = collect(options, with_trends=True), chosen_period(request)
    links = Links(site, request)
    history = attempt_history(options.database, int(snapshot.second // 60), period, offset=minutes_ahead())
    return {
        "snapshot": snapshot,
        "tiles": [
            {
                "key": key,
                "label": label,
                "hint": hint,
                "count": (count := snapshot.counts[key]),
                "exactness_note": exactness_note(count),
                "url": links.list_url(Task, kind="all", **query),
            }
            for key, label, hint, query in TILES
        ],
        "counted_until": describe_lag(snapshot.rollup_lag, snapshot.second),
        "warnings": list(_warnings(snapshot, links)),
        "is_empty": not any(snapshot.counts.values()),
        "tabs": period_tabs(period),
        "names_url": links.task_names_url(),
        "chart": outcome_chart("attempts", chart_title(_("Attempts"), period), history, links.list_url(Task)),
        **_errors(links, options.database, period),
        **(_queues(snapshot, links) if links.can_view(Queue) else {}),
        **(_workers(snapshot, links) if links.can_view(Worker) else {}),
        **(_workflows(snapshot, links, options.database) if links.can_view(Workflow) else {}),
    }


def _errors(links: Links, database: str, period: Period) -> dict[str, Any]:
    """Return the first rows of the list of errors, in one statement."""
    report = failure_report(database, period, limit=MAX_ERRORS)
    return {
        "report": report,
        "rows": error_rows(report, period, links),
        "period_words": TEXTS[period.key].words,
        "errors_url": errors_url(links, period),
    }


def _queues(snapshot: MetricsSnapshot, links: Links) -> dict[str, Any]:
    def tasks(queue: QueueMetrics, state: str, number: int, *, is_more: bool) -> SafeString | str:
        text = format_lower_bound(number, is_more)
        return links.to_list(Task, text, queue_name=queue.name, state=state, kind="all") if number else text

    return {
        "queues_heading": links.to_list(Queue, _("Queues")),
        "queues": [
            (
                queue,
                links.to(Queue, f"~{queue.name}", queue.name),
                tasks(queue, "due", queue.depth.due, is_more=queue.depth.is_more),
                tasks(queue, "blocked", queue.depth.blocked, is_more=queue.depth.is_more_blocked),
                _trend(queue),
            )
            for queue in snapshot.queues
        ],
    }


def _workers(snapshot: MetricsSnapshot, links: Links) -> dict[str, Any]:
    alive = snapshot.alive
    return {
        "workers_heading": links.to_list(Worker, _("Workers")),
        "workers": [
            (
                worker,
                links.to(Worker, worker.id, Truncator(worker.id).chars(28)),
                format_load(worker),
                status_label(worker),
            )
            for worker in alive[:MAX_WORKERS]
        ],
        "all_workers": links.to_list(Worker, _("All workers")) if len(alive) > MAX_WORKERS else "",
        "running_now": links.to_list(Task, _("Running now"), state="running"),
        "online": sum(worker.is_online for worker in alive),
        "stalled": len(snapshot.stalled),
        "not_responding": len(snapshot.not_responding),
        "offline": len(snapshot.workers) - len(alive),
        "threads": sum(worker.threads or 0 for worker in alive),
        "taken": sum(worker.threads_taken for worker in alive),
    }


def _workflows(snapshot: MetricsSnapshot, links: Links, database: str) -> dict[str, Any]:
    """Return the newest workflows in progress and the newest failed ones, in one statement."""
    newest, failed = set(snapshot.newest_workflows), set(snapshot.failed_workflows)
    flows = [(flow, links.to(Workflow, flow.id, flow.name)) for flow in workflow_progress(database, newest | failed)]
    return {
        "workflows_heading": links.to_list(Workflow, _("Workflows in progress")),
        "workflows": [(flow, link, age(-flow.sent_in, flow.sent_at)) for flow, link in flows if flow.id in newest],
        "failed_workflows": [
            (flow, link, age(-flow.ended_in, flow.completed_at))
            for flow, link in flows
            if flow.id in failed and flow.status == WorkflowStatus.FAILED
        ],
    }


def _trend(queue: QueueMetrics) -> SafeString:
    """Return the trend of the wait times in the last hour."""
    p95 = queue.trend.p95 if queue.trend else ()
    values = [value for value in p95 if value is not None]
    threshold = queue.status.latency_warning
    if not values:
        return SafeString("")
    texts = {"title": _("p95"), "most": format_about(max(values)), "latest": format_about(values[-1])}
    words = _("%(title)s: at most %(most)s, last %(latest)s.") % texts
    # Short waits stay low.
    return small_bars(p95, "p95", words, threshold.total_seconds() if threshold else None, lowest_top=1.0)


def _warnings(snapshot: MetricsSnapshot, links: Links) -> Iterator[str]:
    """Yield warnings: those of queues, workers and schedules only for users who may view these."""
    if links.can_view(Queue):
        yield from _queue_warnings(snapshot, links)
    if (
        any(snapshot.counts[key] for key in ("due", "scheduled", "aggregating", "retrying", "awaiting"))
        and not snapshot.alive
    ):
        yield _("No worker is online, so no task runs. Start one: python manage.py horsies_worker")
    if links.can_view(Worker):
        yield from _worker_warnings(snapshot)
    if snapshot.counts["overdue"]:
        yield _("Some tasks are past their deadline, and the reaper has not expired them yet.")
    if any(snapshot.counts.values()) and snapshot.is_reaper_late:
        yield _(
            "The reaper has not run recently, so tasks of dead workers are not recovered. Start a worker without "
            "--no-reaper, or python manage.py horsies_reaper"
        )
    if links.can_view(Schedule):
        yield from _schedule_warnings(snapshot, links)


def _queue_warnings(snapshot: MetricsSnapshot, links: Links) -> Iterator[str]:
    for warning in snapshot.latency_warnings:
        link = links.to(Queue, f"~{warning.queue}", warning.queue)
        yield format_html("{} {}: {}.", _("Queue"), link, describe_warning(warning, snapshot.second))
    if snapshot.alive and snapshot.unserved:
        text = _(
            "No worker serves these queues, or all of their workers are stopping, quiet or stand still: %(queues)s."
        )
        yield text % {"queues": ", ".join(snapshot.unserved)}
    if paused := [queue.name for queue in snapshot.queues if queue.status.is_paused and queue.depth.due]:
        yield _("Paused queues with due tasks: %(queues)s.") % {"queues": ", ".join(paused)}


def _worker_warnings(snapshot: MetricsSnapshot) -> Iterator[str]:
    if silent := len(snapshot.not_responding):
        text = ngettext(
            "%d worker has stopped sending heartbeats and may be dead.",
            "%d workers have stopped sending heartbeats and may be dead.",
            silent,
        )
        yield fill_numbers(text, silent)
    if stalled := len(snapshot.stalled):
        text = ngettext(
            "%d worker stands still: its process is stopped, or a task holds the interpreter's lock.",
            "%d workers stand still: their processes are stopped, or a task holds the interpreter's lock.",
            stalled,
        )
        yield fill_numbers(text, stalled)


def _schedule_warnings(snapshot: MetricsSnapshot, links: Links) -> Iterator[str]:
    if snapshot.are_schedules_late:
        yield _(
            "Schedules are overdue, because no scheduler is running. Start a worker without --no-scheduler, or "
            "python manage.py horsies_scheduler"
        )
    if broken := snapshot.broken_schedules:
        text = ngettext(
            "%d schedule is disabled because its timing is invalid.",
            "%d schedules are disabled because their timing is invalid.",
            broken,
        )
        yield links.to_list(Schedule, fill_numbers(text, broken), state=DisabledBy.TIMING.value)
