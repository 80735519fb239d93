"""The admin of the queue. ``register(site)`` puts it on a site of one's own; Django's default site has it."""

from django.contrib import admin

from ..models import Queue, Task, Worker, Workflow
from .queues import QueueAdmin
from .tasks import TaskAdmin
from .workers import WorkerAdmin
from .workflows import WorkflowAdmin


def register(site: admin.AdminSite) -> None:
    """Register every page with ``site``."""
    site.register(Task, TaskAdmin)
    site.register(Queue, QueueAdmin)
    site.register(Worker, WorkerAdmin)
    site.register(Workflow, WorkflowAdmin)


register(admin.site)
