"""The page of one error group, with buttons for all of its tasks in one state.

Each button leads to an action of their list, which counts them, asks, and acts; see :mod:`..actions.bulk_action`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...models import Task, Worker
from ...models.rollup import minute_of
from ...ops.error_groups import last_failure, task_counts
from ...ops.metrics import Count
from ...ops.metrics.errors import FailureRun, failing_group, latest_run
from ...ops.metrics.history import FAILED, RETRIED, History, Period, attempt_history
from ...ops.payload_view.excerpt import excerpt_of
from ..actions.action_admin import ActionAdmin
from ..ages import relative_time
from ..attempt_charts import LABELS
from ..charts import Chart, Panel, Series
from ..formatting import format_count, format_time, text_block
from ..links import Links
from ..periods import TEXTS, chart_title, chosen_period, counted_until, minutes_ahead, period_tabs
from ..tasks.output import last_output
from .rows import error_name, tasks_url

#: Characters of an error message.
MAX_MESSAGE: Final = 2_000

#: The id of the block with the last traceback.
TRACEBACK: Final = "horsies-last-traceback"

#: Maximum number of tasks, and of queues, on a page.
MAX_NAMES: Final = 20

#: The states of a group's tasks: the label, the note, and the filter of the task list.
_STATES: Final = (
    ("failed", gettext_lazy("Failed"), "", {"state": "failed"}),
    ("retrying", gettext_lazy("Retrying"), gettext_lazy("waiting for the next attempt"), {"state": "retrying"}),
    ("again", gettext_lazy("Retry due or running"), "", None),
)


#: For each button: the action, the state of its tasks, and its label with a placeholder for their number.
_BUTTONS: Final[tuple[tuple[str, str, Callable[[int], str]], ...]] = (
    ("retry", "failed", lambda count: ngettext("Retry %s failed task", "Retry %s failed tasks", count)),
    ("run_now", "retrying", lambda count: ngettext("Run %s retrying task now", "Run %s retrying tasks now", count)),
    ("cancel", "retrying", lambda count: ngettext("Cancel %s retrying task", "Cancel %s retrying tasks", count)),
    ("delete", "failed", lambda count: ngettext("Delete %s failed task", "Delete %s failed tasks", count)),
)

#: Django asks for at least one selected row, even if the action is for all that match.
_ANY_ROW: Final = str(UUID(int=0))


def group_context(site: AdminSite, request: HttpRequest, group: Any) -> dict[str, Any]:
    """Return the context of the page. ``group`` was read with ``read_at``. Takes at most nine statements."""
    database, period = str(group._state.db), chosen_period(request)
    links = Links(site, request)
    history = attempt_history(database, minute_of(group.read_at), period, offset=minutes_ahead(), fingerprint=group.pk)
    counts = task_counts(database, group.pk)
    failing = failing_group(database, period, group.pk)
    return {
        "title": str(group),
        **counted_until(database),
        "group": group,
        "error": error_name(group, group.pk),
        "run": _run_text(latest_run(database, group, group.read_at), group),
        "first_seen": _seen(group.first_seen_at, group),
        "last_seen": _seen(group.last_seen_at, group),
        "states": [
            {
                "key": key,
                "label": label,
                "hint": hint,
                "count": counts[key],
                "url": tasks_url(links, group.pk, **query) if query else None,
            }
            for key, label, hint, query in _STATES
            if counts[key] or query is not None
        ],
        "buttons": _buttons(site, request, links, group.pk, counts),
        "tabs": period_tabs(period),
        "period_words": TEXTS[period.key].words,
        "counts": failing.counts,
        "chart": _chart(history, period),
        "tasks": _place_rows(failing.places.tasks, "task_name", group.pk, links, links.to_task_name),
        "queues": _place_rows(failing.places.queues, "queue_name", group.pk, links, str),
        "last": _last(group, links),
    }


def _buttons(
    site: AdminSite, request: HttpRequest, links: Links, fingerprint: str, counts: Mapping[str, Count]
) -> list[dict[str, Any]]:
    """Return buttons for the actions that this user may use, for states with tasks: where and what to post."""
    tasks: Any = site.get_model_admin(Task) if site.is_registered(Task) else None
    if not isinstance(tasks, ActionAdmin) or not tasks.has_view_permission(request):
        return []
    allowed = {action.name for action in tasks.allowed_actions(request)}
    return [
        {
            "label": label(count.number) % format_count(count),
            "url": url,
            "fields": (("action", name), ("select_across", "1"), ("index", "0"), (ACTION_CHECKBOX_NAME, _ANY_ROW)),
        }
        for name, state, label in _BUTTONS
        if name in allowed and (count := counts[state]) and (url := tasks_url(links, fingerprint, state=state))
    ]


def _chart(history: History, period: Period) -> Chart:
    series = [Series(outcome, LABELS[outcome], history.values(outcome)) for outcome in (FAILED, RETRIED)]
    title = chart_title(_("Failed attempts"), period)
    return Chart("error", title, history.starts, history.length, [Panel("", series)], _("no failures counted."))


def _place_rows(
    counts: Any, parameter: str, fingerprint: str, links: Links, shown: Callable[[str], str]
) -> dict[str, Any]:
    """Return names as ``shown``, their numbers, and the addresses of the lists of their tasks with the error."""
    names = counts.most_common()
    rows = [
        (shown(name), count, tasks_url(links, fingerprint, **{parameter: name})) for name, count in names[:MAX_NAMES]
    ]
    return {"rows": rows, "more": max(0, len(names) - MAX_NAMES)}


def _seen(moment: Any, group: Any) -> SafeString | str:
    return relative_time(moment, group.read_at) if moment else _("not counted yet")


def _run_text(run: FailureRun | None, group: Any) -> str:
    """Return from when until when it last failed. That it fails now is not known: it may have been mended since."""
    if run is None:
        return _("not counted yet") if group.last_seen_at is None else _("more than 7 days ago")
    since = _to_minute(run.since)
    if run.is_longer:
        since = _("more than 7 days ago")
    elif run.is_to_the_hour:
        since = _("%(hour)s (to the hour)") % {"hour": since}
    until = _to_minute(group.last_seen_at)
    return since if since == until else _("%(since)s to %(until)s") % {"since": since, "until": until}


def _to_minute(moment: datetime) -> str:
    return format_time(moment, exactly=False).rpartition(":")[0]


def _last(group: Any, links: Links) -> dict[str, Any] | None:
    """Return the newest attempt of the group that still exists."""
    failure = last_failure(group)
    if failure is None:
        return None
    attempt, task = failure
    message = attempt.error_message
    return {
        "task": links.to(Task, task.pk, task.task_name),
        "call": excerpt_of(task),
        "attempt": attempt,
        "finished": format_time(attempt.finished_at),
        "worker": links.to(Worker, attempt.worker_id) if attempt.worker_id else "",
        "output": last_output(task, attempt.attempt),
        "message": message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…",
        "traceback": text_block(attempt.traceback, end=True, key=TRACEBACK) if attempt.traceback else "",
        "traceback_key": TRACEBACK,
    }
