"""The admin of workers: which are alive, what each runs, and asking one to be quiet or to stop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import ChangeList
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.numbers import fill_numbers
from ...core.status import TaskStatus
from ...db.expressions import SecondsUntil
from ...db.fields import strings_in
from ...models import Task, Worker
from ...models.worker import WorkerQuerySet
from ..actions.admin_action import AdminAction
from ..ages import age
from ..base import queue_database
from ..formatting import time_column
from ..links import Links, can_view
from ..live_columns import LiveAdmin, live_column

STOP: Final = AdminAction(
    name="stop",
    label=_("Stop gracefully"),
    question=_("Stop %(rows)s gracefully?"),
    list_label=_("Stop selected workers gracefully"),
    act=WorkerQuerySet.request_stop,
    message=lambda count: ngettext("%d worker was asked to stop.", "%d workers were asked to stop.", count),
    has_button=lambda worker: worker.stop_requested_at is None,
    logged_columns=("stop_requested_at",),
    warning=_(
        "The worker claims no more tasks, finishes the running ones, however long they take, and then exits. "
        "It is not replaced: when the last worker process has exited, horsies_worker exits with status 0. "
        "This cannot be undone; to continue, start a new worker."
    ),
)


QUIET: Final = AdminAction(
    name="quiet",
    label=_("Quiet"),
    question=_("Quiet %(rows)s?"),
    list_label=_("Quiet selected workers"),
    act=WorkerQuerySet.quiet,
    message=lambda count: ngettext("%d worker is quiet.", "%d workers are quiet.", count),
    has_button=lambda worker: worker.quiet_since is None and worker.stop_requested_at is None,
    logged_columns=("quiet_since",),
    warning=_(
        "The worker claims no more tasks, gives back those that have not started, finishes the running ones, and stays "
        "until it is resumed or stopped. If its process dies, the process that replaces it is quiet too."
    ),
)

RESUME: Final = AdminAction(
    name="resume",
    label=_("Resume"),
    list_label=_("Resume selected workers"),
    act=WorkerQuerySet.resume,
    message=lambda count: ngettext("%d worker resumed.", "%d workers resumed.", count),
    has_button=lambda worker: worker.quiet_since is not None,
    logged_columns=("quiet_since",),
    permission="quiet",
)


#: Maximum number of a worker's tasks named in the list.
MAX_NAMED: Final = 3

#: Maximum number of held tasks named on a page, and the columns that are read of each.
MAX_HELD: Final = 1_000
_HELD_COLUMNS: Final = ("task_name", "status", "started_at", "claimed_by_worker_id")


def attach_status(workers: Sequence[Any], site: AdminSite, request: HttpRequest) -> None:
    """Set each worker's status, the tasks that it has held for longest if this user may view them, and the links.

    Takes at most two statements. Both read the index of held rows.
    """
    from ...ops.metrics.workers import count_held, worker_status
    from .state_text import format_load, status_label

    database, keys = queue_database() or DEFAULT_DB_ALIAS, [worker.pk for worker in workers]
    held, tasks, links = count_held(database, Q(claimed_by_worker_id__in=keys)), defaultdict(list), Links(site, request)
    if can_view(site, request, Task):
        rows = Task.objects.using(database).active().filter(claimed_by_worker_id__in=keys)
        oldest = rows.annotate(started_in=SecondsUntil("started_at")).only(*_HELD_COLUMNS).order_by("claimed_at")
        for task in oldest[:MAX_HELD]:
            tasks[task.claimed_by_worker_id].append(task)
    for worker in workers:
        worker.status, worker.held_tasks, worker.page_links = worker_status(worker, held), tasks[worker.pk], links
        worker.state_label, worker.load = status_label(worker.status), format_load(worker.status)


#: Times of a worker. All but the first are empty unless it is in that state.
_TIMES: Final = ("started_at", "stalled_since", "quiet_since", "stop_requested_at")


class WorkerList(ChangeList):
    """Lists workers with their load."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the status of the page's workers at once."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        attach_status(self.result_list, self.model_admin.admin_site, request)


class WorkerAdmin(LiveAdmin):
    """Shows worker processes, makes them quiet, and asks them to stop."""

    admin_actions = (QUIET, RESUME, STOP)
    list_display = (
        "shown_name",
        "shown_state",
        "shown_load",
        "shown_tasks",
        "shown_memory",
        "shown_process",
        "shown_queues",
        "shown_age",
    )
    ordering = ("-started_at", "pk")
    sortable_by = ()
    change_form_template = "admin/horsies_django/worker_change_form.html"
    fieldsets = (
        (None, {"fields": ("name", ("hostname", "pid"), ("backend", "version", "code_version"))}),
        (_("Serves"), {"fields": ("shown_queues", ("threads", "async_slots"))}),
        (_("Times"), {"fields": [f"shown_{column}" for column in _TIMES]}),
    )

    shown_started_at = time_column("started_at", _("started at"))
    shown_stalled_since = time_column("stalled_since", _("stands still since"))
    shown_quiet_since = time_column("quiet_since", _("quiet since"))
    shown_stop_requested_at = time_column("stop_requested_at", _("stop requested at"))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Return all fields."""
        return flatten_fieldsets(self.fieldsets)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out the times of states that the worker is not in."""
        hidden = {f"shown_{column}" for column in _TIMES if not getattr(obj, column, None)}
        fieldsets = super().get_fieldsets(request, obj)
        return [
            (title, {"fields": [name for name in options["fields"] if name not in hidden]})
            for title, options in fieldsets
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Annotate the times of its state, by the database's clock."""
        from ...ops.metrics.workers import with_times

        return with_times(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the change list with the workers' load."""
        return WorkerList

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the tasks that it runs."""
        if (worker := kwargs.get("obj")) is not None:
            attach_status([worker], self.admin_site, request)
            links, query = worker.page_links, {"worker": worker.pk, "state": "active", "kind": "all"}
            context = context | {
                "worker": worker,
                "holds": [
                    (links.to(Task, task.pk, task.task_name), task.status == TaskStatus.RUNNING, _run_time(task))
                    for task in worker.held_tasks
                ],
                "many": format_task_count(worker.status.held),
                "summary": self._summary(worker),
                "running_now": links.to_list(Task, _("Running now"), **query),
            }
        return super().render_change_form(request, context, *args, **kwargs)

    def _summary(self, worker: Any) -> list[tuple[Any, Any]]:
        return [
            (_("state"), worker.state_label),
            (_("load"), worker.load),
            (_("memory"), filesizeformat(worker.memory) if worker.memory else "-"),
            *(
                [(_("last heartbeat"), format_last_beat(worker))] if worker.status.is_responding else []
            ),  # else in its state
        ]

    # Columns.

    @admin.display(description=_("worker"), ordering="pk")
    def shown_name(self, worker: Worker) -> str:
        """Its name, and the beginning of the suffix that makes it unique."""
        name, _, number = worker.pk.rpartition("-")
        return f"{name}-{number[:8]}" if name else worker.pk

    @live_column
    @admin.display(description=_("state"))
    def shown_state(self, worker: Any) -> SafeString | str:
        """Whether it is alive, stands still, is stopping or quiet."""
        label: SafeString = worker.state_label
        return label

    @live_column
    @admin.display(description=_("load"))
    def shown_load(self, worker: Any) -> str:
        """How many of its slots are taken."""
        return str(worker.load)

    @live_column
    @admin.display(description=_("tasks in progress"))
    def shown_tasks(self, worker: Any) -> SafeString | str:
        """The tasks held for longest, as links; only their number for users who may not view tasks."""
        links: Links = worker.page_links
        lines: list[tuple[Any]] = [
            (links.to(Task, task.pk, format_html("{} {}", task.task_name.rpartition(".")[2], _run_time(task))),)
            for task in worker.held_tasks[:MAX_NAMED]
        ]
        if not lines:
            return format_task_count(worker.status.held)
        more = worker.status.held - len(lines)
        if more:
            lines.append((fill_numbers(ngettext("and %d more", "and %d more", more), more),))
        return format_html_join("", "<div>{}</div>", lines)

    @admin.display(description=_("host, process"))
    def shown_process(self, worker: Any) -> SafeString:
        """Where it runs."""
        return format_html('{} <span class="quiet">{}</span>', worker.hostname, worker.pid)

    @live_column
    @admin.display(description=_("started, version"))
    def shown_age(self, worker: Any) -> SafeString:
        """When it started, and its version."""
        ran = (worker.last_beat_at - worker.started_at).total_seconds() - worker.beat_in
        started = age(ran, worker.started_at)
        return format_html('{} <span class="quiet">{}</span>', started, worker.version)

    @live_column
    @admin.display(description=_("memory"))
    def shown_memory(self, worker: Worker) -> str:
        """Its memory at the last heartbeat."""
        return filesizeformat(worker.memory) if worker.memory else "-"

    @admin.display(description=_("queues"))
    def shown_queues(self, worker: Worker) -> str:
        """The queues that it serves."""
        served = ", ".join(strings_in(worker.queues)) or gettext("all")
        if excluded := strings_in(worker.excluded_queues):
            return gettext("%(queues)s, but not %(excluded)s") % {
                "queues": served,
                "excluded": ", ".join(excluded),
            }
        return served


def _run_time(task: Any) -> SafeString | str:
    """Return how long a held task has run; a dash if it has not started."""
    return "-" if task.started_at is None else age(-task.started_in, task.started_at, "full")


def format_task_count(count: int) -> str:
    """Return a number of tasks in words, or a dash."""
    return fill_numbers(ngettext("%d task", "%d tasks", count), count) if count else "-"


def format_last_beat(worker: Any) -> SafeString:
    """Return the time since its last heartbeat."""
    return age(-worker.beat_in, worker.last_beat_at)
