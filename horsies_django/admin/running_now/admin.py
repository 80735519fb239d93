"""*Running now*: what workers hold at this moment, the longest running first. It refreshes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.status import TaskStatus
from ...models import Task
from ...ops.running import FILTERS, MAX_SHOWN, HeldCounts, count_held, held_tasks, usual_run_times
from ..base import SinglePageAdmin, queue_database
from ..links import Links
from ..live import answer_unchanged
from ..tasks.task_actions import CANCEL_RUNNING
from .rows import held_rows

#: Maximum number of choices of a filter, those with the most tasks.
MAX_CHOICES: Final = 100

_LABELS: Final = {
    "queue_name": gettext_lazy("queue"),
    "task_name": gettext_lazy("task"),
    "worker": gettext_lazy("worker"),
}


@dataclass(frozen=True, slots=True)
class HeldFilter:
    """A filter of the page, its choices with their numbers of tasks, and the selected one."""

    name: str
    label: Any
    choices: list[tuple[str, int]]
    selected: str


class RunningNowAdmin(SinglePageAdmin):
    """Shows the page in place of a list. Requires permission to view tasks."""

    class Media:
        css = {"all": ["horsies_django/running_now.css"]}
        js = ["horsies_django/live.js"]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Render the page in at most four statements of its own."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = {name: value for name in FILTERS if (value := request.GET.get(name, "").replace("\0", "\ufffd"))}
        database = queue_database()
        counts = count_held(database, chosen)
        tasks = held_tasks(database, chosen) if counts.statuses else []
        usual = usual_run_times(database, {task.task_name for task in tasks})
        links = Links(self.admin_site, request)
        started, waiting = held_rows(tasks, usual, links, self._cancel_urls(request, tasks))
        context = {
            **self.admin_site.each_context(request),
            "title": _("Running now"),
            "opts": self.opts,
            "media": self.media,
            "started": started,
            "waiting": waiting,
            "started_count": counts.statuses[TaskStatus.RUNNING],
            "waiting_count": counts.statuses[TaskStatus.CLAIMED],
            "is_cut": counts.statuses.total() > MAX_SHOWN,
            "max_shown": MAX_SHOWN,
            "may_cancel": any(row.cancel_url for row in (*started, *waiting)),
            "filters": [_filter(name, counts, chosen) for name in FILTERS],
            "chosen": chosen,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name  # as every admin view does
        return answer_unchanged(request, TemplateResponse(request, "admin/horsies_django/running_now.html", context))

    def _cancel_urls(self, request: HttpRequest, tasks: list[Any]) -> Mapping[Any, str]:
        """Return the URL of the page that asks whether to cancel each task, for users who may."""
        if not (self.admin_site.is_registered(Task) and CANCEL_RUNNING.is_allowed(request, Task)):
            return {}
        name = f"{self.admin_site.name}:{self.opts.app_label}_task_do"
        try:
            return {task.pk: reverse(name, args=[quote(task.pk), CANCEL_RUNNING.name]) for task in tasks}
        except NoReverseMatch:  # the site is not in the URLconf under its name
            return {}


def _filter(name: str, counts: HeldCounts, chosen: Mapping[str, str]) -> HeldFilter:
    """Return a filter; its choices include the selected one."""
    known = dict(counts.choices[name].most_common(MAX_CHOICES))
    known.pop("", None)
    selected = chosen.get(name, "")
    if selected:
        known.setdefault(selected, 0)
    return HeldFilter(name, _LABELS[name], sorted(known.items()), selected)
