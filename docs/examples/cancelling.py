"""Cancelling: cancel waiting tasks, by handle or by unique key, and running bodies."""

import threading
import time

import project
from django.core.management import call_command

project.setup()

from horsies_django import TaskHandle, task

has_begun = threading.Event()


@task(takes_context=True)
def count_sheep(context):
    print("counting")
    has_begun.set()
    while not context.is_cancelled:
        time.sleep(0.01)
    print("stopping")


@task
def wake_up(sleeper):
    has_begun.wait()
    return TaskHandle(sleeper).cancel(include_running=True)


waiting = count_sheep.send()
print("cancelled:", waiting.cancel(), waiting.status())

count_sheep.with_options(unique_key="bedroom").send()
print("cancelled by key:", count_sheep.cancel("bedroom"))

running = count_sheep.send()
noise = wake_up.send(str(running.id))
call_command("horsies_worker", drain=True, threads=2)  # runs a worker in this process until nothing is due
print("cancelled while it ran:", noise.value(), running.status())
print("once more:", running.cancel())

# Output:
# cancelled: True CANCELLED
# cancelled by key: True
# counting
# stopping
# cancelled while it ran: True CANCELLED
# once more: False
