"""Bodies whose statements are counted."""

from __future__ import annotations

from horsies_django import TaskContext, task
from horsies_django.models import Task


@task(takes_context=True, max_attempts=2, backoff=0)
def steps_in_two_runs(context: TaskContext, first: int, count: int) -> list[int]:
    """Take ``count`` steps, of which the first run takes ``first``."""
    kept = []
    for number in range(count):
        if number == first and context.attempt == 1:
            raise LookupError(number)
        kept.append(context.step("number", int, number))
    return kept


@task(takes_context=True)
def cancelled_after(context: TaskContext, count: int) -> None:
    """Take ``count`` steps, and one after the task was cancelled."""
    for number in range(count):
        context.step("number", int, number)
    Task.objects.filter(pk=context.task_result.id).cancel(include_running=True)
    context.step("late", int, count)
