"""Register the queue's admin pages on the default site; ``register(site)`` registers them on another."""

from django.contrib import admin

from ..models import ErrorGroup, Heartbeat, Limit, Overview, Queue, RunningNow, Schedule, Task, Worker, Workflow
from .errors.admin import ErrorGroupAdmin
from .overview import OverviewAdmin
from .running_now.admin import RunningNowAdmin
from .schedules.admin import ScheduleAdmin
from .tasks.admin import TaskAdmin
from .workers_queues.heartbeat_admin import HeartbeatAdmin
from .workers_queues.limit_admin import LimitAdmin
from .workers_queues.queue_admin import QueueAdmin
from .workers_queues.worker_admin import WorkerAdmin
from .workflows.admin import WorkflowAdmin

__all__ = ["register"]


def register(site: admin.AdminSite) -> None:
    """Register every page of this package on ``site``."""
    site.register(Overview, OverviewAdmin)
    site.register(RunningNow, RunningNowAdmin)
    site.register(Task, TaskAdmin)
    site.register(ErrorGroup, ErrorGroupAdmin)
    site.register(Workflow, WorkflowAdmin)
    site.register(Schedule, ScheduleAdmin)
    site.register(Queue, QueueAdmin)
    site.register(Limit, LimitAdmin)
    site.register(Worker, WorkerAdmin)
    site.register(Heartbeat, HeartbeatAdmin)


register(admin.site)
