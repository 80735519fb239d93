"""Signals: receivers are called at each step of a task."""

import project
from django.dispatch import receiver

project.setup()

from horsies_django import task
from horsies_django.signals import task_cancelled, task_enqueued, task_finished, task_retrying, task_started
from horsies_django.testing import drain


@receiver([task_enqueued, task_started, task_finished, task_cancelled])
def note(signal, task_result, **kwargs):
    names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished", task_cancelled: "cancelled"}
    print(f"{names[signal]}: {task_result.task.name}, attempt {task_result.attempts}")


@receiver(task_retrying)
def note_retry(task_result, error, next_retry_at, **kwargs):
    print(f"retrying: {task_result.task.name}, {error.error_code}: {error.message}")


@task(max_attempts=2, backoff=0, takes_context=True)
def unlock(context):
    if context.attempt == 1:
        raise PermissionError("wrong key")


unlock.send()
drain()
unlock.send().cancel()

# Output:
# enqueued: unlock, attempt 0
# started: unlock, attempt 1
# retrying: unlock, UNHANDLED_EXCEPTION: wrong key
# started: unlock, attempt 2
# finished: unlock, attempt 2
# enqueued: unlock, attempt 0
# cancelled: unlock, attempt 0
