"""The page of a task name, and the list of names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import DEFAULT_DB_ALIAS
from django.forms.widgets import Media
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import NoReverseMatch
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ...core.registry import registry
from ...db.clock import database_now
from ...models import Schedule, Task
from ...models.operator_actions import ENGINE_TASK_PREFIX
from ...ops.keyset.scan import KeysetScan
from ...ops.metrics.errors import failure_report
from ...ops.metrics.history import COMPLETED, DAY, Period, attempt_history, rollup_clock
from ...ops.metrics.tasks import MAX_NAMES, NAME_ORDERS, busiest_names
from ...ops.payload_view.contents import PARTS
from ...ops.task_options import options_in_force
from ..attempt_charts import outcome_chart, time_chart
from ..base import read_database, replica_note
from ..errors.rows import error_rows, errors_url
from ..formatting import short
from ..links import Links
from ..periods import chart_title, chosen_period, describe_lag, minutes_ahead, period_tabs
from ..schedules.columns import format_moment, state_badge
from ..schedules.timing_text import describe_timing
from .changelist import complete_rows, with_columns

if TYPE_CHECKING:
    from .admin import TaskAdmin

#: Maximum number of errors, of tasks and of schedules on a page.
MAX_ERRORS: Final = 20
MAX_RUNS: Final = 10
MAX_SCHEDULES: Final = 20


def names_page(admin: TaskAdmin, request: HttpRequest) -> HttpResponse:
    """Render the list of names: those that ran in the last 24 hours, then the other registered ones."""
    database = _database()
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
        "replica_note": replica_note(),
        "counted_until": describe_lag(clock.lag, clock.second),
        "counts": [(count, _address(admin, count.name)) for count in counts],
        "orders": [(label, f"?sort={key}", key == order) for key, label in zip(NAME_ORDERS, labels, strict=True)],
        "is_cut": len(counts) == MAX_NAMES,
        "max_names": MAX_NAMES,
        "idle": [(name, _address(admin, name)) for name in idle],
    }
    return _render(admin, request, "names", context)


def name_page(admin: TaskAdmin, request: HttpRequest, task_name: str) -> HttpResponse:
    """Render the page of one name, even if nothing is known of it."""
    if "\0" in task_name:  # PostgreSQL does not accept it in text
        raise Http404
    links = Links(admin.admin_site, request)
    context = {
        "title": task_name,
        "names_url": admin.page_url("names"),
        "tasks_list_url": admin.page_url("changelist"),
        "tasks_url": f"{admin.page_url('changelist')}?{urlencode({'task_name': task_name, 'kind': 'all'})}",
        "running": Task.objects.using(_database()).active().filter(task_name=task_name).count(),
        "running_url": links.list_url(Task, state="active", task_name=task_name),
        **_figures(admin, task_name, chosen_period(request, DAY), links),
        "runs": _last_runs(admin, request, task_name, links),
        "options": options_in_force(task_name),
        "schedules": _schedules(task_name, links),
    }
    return _render(admin, request, "name", context)


def _figures(admin: TaskAdmin, task_name: str, period: Period, links: Links) -> dict[str, Any]:
    """Return the numbers, charts and errors of a period."""
    database = _database()
    clock = rollup_clock(database)
    history = attempt_history(
        database, clock.minute, period, ["waits", "runs"], offset=minutes_ahead(), task_name=task_name
    )
    total = history.totals.total()
    title, list_url = chart_title(_("Attempts"), period), admin.page_url("changelist")
    report = failure_report(database, period, task=task_name, limit=MAX_ERRORS)
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
            outcome_chart("attempts", title, history, list_url, task_name=task_name),
            time_chart("times", chart_title(_("Times"), period), history),
        ],
        "report": report,
        "rows": error_rows(report, period, links),
        "errors_url": errors_url(links, period, task=task_name),
    }


def _render(admin: TaskAdmin, request: HttpRequest, page: str, context: dict[str, Any]) -> HttpResponse:
    media = admin.media + Media(
        css={"all": ["horsies_django/charts.css", "horsies_django/errors.css", "horsies_django/task_names.css"]}
    )
    return admin.render(request, f"task_names/{page}", {"media": media, **context})


def _last_runs(admin: TaskAdmin, request: HttpRequest, task_name: str, links: Links) -> list[dict[str, Any]]:
    """Return the newest tasks of this name among those that one page of the list looks through."""
    rows = admin.get_queryset(request).filter(task_name=task_name).defer(*PARTS, "retry_policy")
    tasks = KeysetScan(with_columns(rows)).page().rows[:MAX_RUNS]
    complete_rows(tasks, links)
    return [
        {
            "state": admin.shown_state(task),
            "call": admin.shown_call(task),
            "run": admin.shown_run(task),
            "place": admin.shown_place(task),
            "id": links.to(Task, task.pk, short(str(task.pk))),
        }
        for task in tasks
    ]


def _schedules(task_name: str, links: Links) -> list[dict[str, Any]]:
    """Return the schedules that send this task, for users who may view schedules."""
    if not links.can_view(Schedule):
        return []
    database = _database()
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


def _address(admin: TaskAdmin, task_name: str) -> str | None:
    """Return the URL of a name's page; None for a name that no URL can hold."""
    try:
        return admin.page_url("name", task_name)
    except NoReverseMatch:
        return None


def _database() -> str:
    return read_database() or DEFAULT_DB_ALIAS
