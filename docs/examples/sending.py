"""Sending: each method inserts a row, and a worker runs the task."""

import project
from asgiref.sync import async_to_sync

project.setup()

from horsies_django import task
from horsies_django.testing import drain


@task
def greet(name):
    print(f"Hello, {name}!")


greet.send("Ann")  # one INSERT; returns a TaskHandle
greet.enqueue("Ben")  # Django's verb; returns the framework's TaskResult
greet.send_many({"name": name} for name in ["Cem", "Dora"])  # one INSERT for each 1,000 calls
greet.schedule(3600, "Eve")  # runs in an hour
async_to_sync(greet.asend)("Finn")  # in async code: await greet.asend("Finn")

print("sent, not run")
print(drain())  # runs what a worker would run now
print(drain(scheduled=True))  # also runs tasks that are due later

# Output:
# sent, not run
# Hello, Ann!
# Hello, Ben!
# Hello, Cem!
# Hello, Dora!
# Hello, Finn!
# 5 COMPLETED
# Hello, Eve!
# 1 COMPLETED
