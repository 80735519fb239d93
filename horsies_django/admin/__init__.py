"""The admin of the queue."""

from django.contrib import admin

from ..models import Queue, Task, Worker
from .queues import QueueAdmin
from .tasks import TaskAdmin
from .workers import WorkerAdmin

admin.site.register(Task, TaskAdmin)
admin.site.register(Queue, QueueAdmin)
admin.site.register(Worker, WorkerAdmin)
