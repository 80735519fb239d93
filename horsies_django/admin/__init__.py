"""Register the queue's admin pages on the default site; ``register(site)`` registers them on another.

:class:`TasksInline` shows the latest tasks about a row on its page in the project's own admin.
"""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..models import ErrorGroup, Heartbeat, Limit, Overview, Queue, Schedule, Task, Worker, Workflow
from .errors.admin import ErrorGroupAdmin
from .overview_admin import OverviewAdmin
from .schedules.admin import ScheduleAdmin
from .tasks.admin import TaskAdmin
from .tasks_inline import TasksInline
from .workers_queues.heartbeat_admin import HeartbeatAdmin
from .workers_queues.limit_admin import LimitAdmin
from .workers_queues.queue_admin import QueueAdmin
from .workers_queues.worker_admin import WorkerAdmin
from .workflows.admin import WorkflowAdmin

__all__ = ["TasksInline", "register"]


def register(site: admin.AdminSite) -> None:
    """Register every page of this package on ``site``, and list them there in this order."""
    pages: dict[Any, Any] = {
        Overview: OverviewAdmin,
        Task: TaskAdmin,
        ErrorGroup: ErrorGroupAdmin,
        Workflow: WorkflowAdmin,
        Schedule: ScheduleAdmin,
        Queue: QueueAdmin,
        Limit: LimitAdmin,
        Worker: WorkerAdmin,
        Heartbeat: HeartbeatAdmin,
    }
    for model, page in pages.items():
        site.register(model, page)
    places, list_apps = {model: place for place, model in enumerate(pages)}, site.get_app_list

    def in_order(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the apps of the index; Django sorts the models of each by name."""
        apps = list_apps(request, app_label)
        for app in apps:
            if app["app_label"] == Task._meta.app_label:
                app["models"].sort(key=lambda model: places.get(model["model"], len(places)))
                app["models"] = [entry for model in app["models"] for entry in _with_running(model)]
        return apps

    site.get_app_list = in_order  # type: ignore[method-assign]


def _with_running(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an entry of the index; after that of the tasks a link to the running ones."""
    if entry["model"] is not Task or not entry["admin_url"]:
        return [entry]
    url = f"{entry['admin_url']}?state=running"
    return [entry, entry | {"name": _("Running"), "object_name": "Running", "admin_url": url, "add_url": None}]


register(admin.site)
