"""Batches: many calls, and callbacks that run when all of them have ended."""

import project

project.setup()

from horsies_django import Batch, BatchHandle, task
from horsies_django.testing import drain

blocked = {3}


@task
def send_mail(user):
    if user in blocked:
        raise ValueError(f"user {user} is blocked")
    return 1


@task
def publish(results, batch_id):
    print(f"on_success: {sum(results)} mails")


@task
def report(batch_id):
    print(f"on_complete: {BatchHandle(batch_id).progress().failed} failed")


with Batch("newsletter", on_success=publish, on_complete=report) as batch:
    batch.add_many(send_mail, [{"user": user} for user in range(1, 5)])
    batch.add(send_mail, 5)

print(batch.handle.progress())
drain()
print(batch.handle.status(), f"{batch.handle.progress().completed} of {batch.handle.progress().total}")

blocked.clear()
batch.handle.retry()  # only the failed calls
drain()
print(batch.handle.status(), batch.handle.value())

# Output:
# BatchProgress(total=5, waiting=5, running=0, completed=0, failed=0, cancelled=0)
# on_complete: 1 failed
# FAILED 4 of 5
# on_success: 5 mails
# COMPLETED [1, 1, 1, 1, 1]
