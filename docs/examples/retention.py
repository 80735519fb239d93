"""Retention: how long ended tasks are kept."""

from datetime import timedelta

import project
from django.core.management import call_command

project.setup(retention={"completed": "12h", "failed": "90d"})  # OPTIONS: for all tasks

from horsies_django import task
from horsies_django.models import Task
from horsies_django.testing import drain


@task
def plain(): ...


@task(retention="2h")
def resize(image): ...


@task
def fail():
    raise ValueError


def kept(handle):
    row = Task.objects.get(pk=handle.id)
    return timedelta(minutes=round((row.kept_until - (row.completed_at or row.failed_at)) / timedelta(minutes=1)))


handles = [plain.send(), resize.send(5), fail.send(), plain.with_options(retention=timedelta(minutes=5)).send()]
dropped = plain.with_options(retention=0).send()  # deleted as soon as it completes
drain()
for handle in handles:
    print(handle.info().name, "is kept for", kept(handle))
print("dropped:", dropped.status())

call_command("horsies_prune", older_than="0s", status="completed")  # immediately, whatever the retention

# Output:
# retention.plain is kept for 12:00:00
# retention.resize is kept for 2:00:00
# retention.fail is kept for 90 days, 0:00:00
# retention.plain is kept for 0:05:00
# dropped: None
# tasks deleted: 3
# workflows deleted: 0
# heartbeats deleted: 0
