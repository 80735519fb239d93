"""Options of a call: queue, priority, time, deadline, and an id that makes a send repeatable."""

from datetime import timedelta
from uuid import NAMESPACE_URL, uuid5

import project
from django.utils import timezone

project.setup()

from horsies_django import task
from horsies_django.testing import drain


@task(queue_name="reports", priority=5)
def report(kind):
    print(f"{kind} report")


report.send("normal")
report.with_options(priority=50).send("urgent")
report.with_options(queue_name="nightly").send("long")
report.with_options(run_after=timedelta(hours=1)).send("hourly")
late = report.with_options(good_until=timezone.now() - timedelta(minutes=5)).send("outdated")

order = uuid5(NAMESPACE_URL, "https://example.com/orders/42")
first = report.with_options(task_id=order).send("order")
again = report.with_options(task_id=order).send("order")  # inserts nothing
print(f"replayed: {again.replayed}, same task: {again == first}")

print(drain(queues=["reports"]))
print(drain())  # "nightly"
print(f"outdated report: {late.status()}")

# Output:
# replayed: True, same task: True
# urgent report
# normal report
# order report
# 3 COMPLETED
# long report
# 1 COMPLETED
# outdated report: EXPIRED
