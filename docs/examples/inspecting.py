"""Inspecting: list tasks, see why a task is not running, and act on many tasks with one call."""

import project

project.setup()

from horsies_django import task
from horsies_django.ops.inspector import tasks
from horsies_django.testing import drain

server_is_up = False


@task(queue_name="emails")
def send_mail(to, password=""):
    if not server_is_up:
        raise ConnectionError("the mail server is down")


send_mail.send("ann@example.com")
send_mail.send("ben@example.com", password="secret")
drain()
later = send_mail.schedule(3600, "cem@example.com")

for row in tasks().list(queue="emails"):  # newest first
    print(row.state, row.call, row.error_code)
print(tasks().show(later.id).why[0])

server_is_up = True
failed = tasks().matching(status="failed", queue="emails")
print("would be retried:", failed.retry(dry_run=True).done)
print("retried:", failed.retry().done)
print(drain())

# Output:
# scheduled "cem@example.com" None
# failed "ben@example.com", password="********************" UNHANDLED_EXCEPTION
# failed "ann@example.com" UNHANDLED_EXCEPTION
# It is scheduled and not due yet.
# would be retried: 2
# retried: 2
# 2 COMPLETED
