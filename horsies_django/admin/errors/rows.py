"""The rows of *What fails most*, and the links to the pages of errors and to their tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.results import OperationalCode
from ...models import ErrorGroup, Task
from ...ops.metrics.errors import FailingGroup, FailureReport
from ...ops.metrics.history import Period
from ..ages import relative_time
from ..charts import small_bars
from ..links import Links
from ..periods import PARAMETER

#: The parameter of the task list that filters by error group.
FINGERPRINT: Final = "fingerprint"


def same_error_link(fingerprint: str | None, links: Links) -> SafeString | str:
    """Return a link to the page of an error group: all tasks with this error. Empty without a group."""
    if not fingerprint or not links.can_view(ErrorGroup):
        return ""
    link = links.to(ErrorGroup, fingerprint, _("All tasks with this error"))
    return format_html('<span class="horsies-same-error">{}</span>', link)


def errors_url(links: Links, period: Period, **query: str) -> str | None:
    """Return the address of the list of errors in a period."""
    return links.list_url(ErrorGroup, **query, **{PARAMETER: period.key})


def tasks_url(links: Links, fingerprint: str, **query: str) -> str | None:
    """Return the address of the list of a group's tasks, with the internal steps of workflows."""
    return links.list_url(Task, **{FINGERPRINT: fingerprint}, **query, kind="all")


def error_name(group: ErrorGroup | None, fingerprint: str) -> dict[str, str]:
    """Return the name of a group in parts: the class without its module, or else the code, and where it is raised.

    A group without a row has its fingerprint as its name.
    """
    if group is None:
        return {"name": fingerprint}
    module, _, name = group.exception_class.rpartition(".")
    code = "" if group.error_code == OperationalCode.UNHANDLED_EXCEPTION else group.error_code
    return {
        "name": name or code or group.error_code,
        "module": module,
        "code": code if name else "",
        "location": group.location,
    }


#: Maximum number of names in a tooltip.
_MAX_LISTED: Final = 20


def error_rows(report: FailureReport, period: Period, links: Links) -> list[dict[str, Any]]:
    """Return the groups of a report as rows; each links to its page with the same period."""
    return [_row(failing, report.now, period, links) for failing in report.groups]


def _row(failing: FailingGroup, now: datetime | None, period: Period, links: Links) -> dict[str, Any]:
    group = failing.group
    return {
        "error": error_name(group, failing.fingerprint),
        "url": links.url(ErrorGroup, failing.fingerprint, **{PARAMETER: period.key}),
        "counts": failing.counts,
        "tasks": _names(failing.places.tasks, "task", period, links),
        "queues": _names(failing.places.queues, "queue", period, links),
        "first_seen": relative_time(group.first_seen_at, now) if group and now else "-",
        "last_seen": relative_time(group.last_seen_at, now) if group and now else "-",
        "trend": small_bars(failing.series, "failed"),
    }


def _names(counts: Counter[str], parameter: str, period: Period, links: Links) -> dict[str, Any] | None:
    """Return the largest of some names, a link to the errors of that task or queue, and how many more there are."""
    if not counts:
        return None
    names = [name for name, _ in counts.most_common()]
    module, dot, name = names[0].rpartition(".") if parameter == "task" else ("", "", names[0])
    return {
        "module": module + dot,
        "name": name,
        "more": len(names) - 1,
        "title": ", ".join(names[:_MAX_LISTED]) + ("…" if len(names) > _MAX_LISTED else ""),
        "url": errors_url(links, period, **{parameter: names[0]}),
    }


def options(counts: Counter[str], chosen: str) -> Sequence[tuple[str, int | None, bool]]:
    """Return the choices of a filter: the names, the largest first, their numbers, and which one is chosen."""
    entries: list[tuple[str, Any]] = list(counts.most_common())
    if chosen and chosen not in counts:
        entries.append((chosen, None))
    return [(name, count, name == chosen) for name, count in entries]
