"""Bodies that meet a sender, a reaper or an operator at a certain point."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

from horsies_django import TaskContext, TaskHandle, task
from horsies_django.exceptions import TaskSuspended
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.jobs.entries import write_entry
from tests.jobs.models import Entry
from tests.steps.jobs import note


def is_first(key: str) -> bool:
    """Note that the body was here; return whether it is the first time."""
    was_here = Entry.objects.filter(key=key).exists()
    write_entry(key)
    return not was_here


@task(takes_context=True)
def gets_its_event_while_it_suspends(context: TaskContext) -> Any:
    try:
        return context.wait_event("approved")
    except TaskSuspended:
        if is_first("suspending"):
            TaskHandle(context.task_result.id).send_event("approved", "in between")
        raise


@task(takes_context=True)
def is_taken_away(context: TaskContext) -> str:
    """Be taken from this worker by what a reaper does, and go on when another body of the task has ended."""
    context.step("a", note, "a")
    if is_first("body"):
        rows = Task.objects.filter(pk=context.task_result.id)
        rows.update(status="PENDING", claimed_by_worker_id=None, claimed_at=None, started_at=None, claim=5)
        with ThreadPoolExecutor() as pool:
            pool.submit(_run_due).result(30)
        return context.step("b", note, "late b")
    return context.step("b", note, "b")


def _run_due() -> None:
    try:
        drain()
    finally:
        connections.close_all()


@task(takes_context=True)
def is_cancelled_in_a_step(context: TaskContext) -> str:
    context.step("a", note, "a")
    return context.step("b", _cancel, str(context.task_result.id))


def _cancel(task_id: str) -> None:
    assert TaskHandle(task_id).cancel(include_running=True)


@task(takes_context=True, concurrency_key="{place}", max_concurrency=1)
def waits_in_a_limit(context: TaskContext, place: str, name: str) -> Any:
    """Hold the only place before and after a wait, and none while it waits."""
    write_entry(f"{name} runs")
    return context.wait_event("approved")


@task(takes_context=True, concurrency_key="{place}", rate_limit="3/h")
def waits_in_a_rate(context: TaskContext, place: str) -> Any:
    write_entry("runs")
    return context.wait_event("approved")
