"""Concurrency limits: a maximum of running calls per key, in all workers together."""

import threading
import time
from collections import Counter

import project
from django.core.management import call_command

project.setup()

from horsies_django import task

running, most, lock = Counter(), Counter(), threading.Lock()


@task(concurrency_key="{customer}", max_concurrency=2)
def import_file(customer, number):
    with lock:
        running[customer] += 1
        most[customer] = max(most[customer], running[customer])
    time.sleep(0.02)
    with lock:
        running[customer] -= 1


handles = import_file.send_many({"customer": customer, "number": n} for customer in ["ann", "ben"] for n in range(5))
call_command("horsies_worker", drain=True, threads=8)

print(f"{sum(handle.status() == 'COMPLETED' for handle in handles)} files are imported")
for customer in sorted(most):
    print(f"{customer}: never more than two at once:", most[customer] <= 2)

# Output:
# 10 files are imported
# ann: never more than two at once: True
# ben: never more than two at once: True
