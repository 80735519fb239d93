"""The admin of the queue. ``register(site)`` puts it on a site of one's own; Django's default site has it."""

from django.contrib import admin

from ..models import Overview, Queue, Task, Worker
from .overview import OverviewAdmin
from .queues import QueueAdmin
from .tasks import TaskAdmin
from .workers import WorkerAdmin


def register(site: admin.AdminSite) -> None:
    """Register every page with ``site``."""
    site.register(Overview, OverviewAdmin)
    site.register(Task, TaskAdmin)
    site.register(Queue, QueueAdmin)
    site.register(Worker, WorkerAdmin)


register(admin.site)
