"""Bodies that wait for events and workflows."""

from __future__ import annotations

from typing import Any

from horsies_django import BatchHandle, TaskContext, TaskHandle, WorkflowHandle, task
from horsies_django.exceptions import WaitTimeout
from tests.steps.jobs import note


@task(takes_context=True)
def waits(context: TaskContext, name: str = "approved", timeout: float | None = None, count: int = 1) -> list[Any]:
    """Return the payloads of events; "late" for one that did not come in time."""
    payloads: list[Any] = []
    for number in range(count):
        context.step("note", note, f"wait {number}")
        try:
            payloads.append(context.wait_event(name, timeout=timeout))
        except WaitTimeout:
            payloads.append("late")
    return payloads


@task
def ends() -> None:
    """End at once."""


@task(takes_context=True)
def restarts_after_an_event(context: TaskContext, payloads: list[Any] | None = None) -> list[Any]:
    """Collect three events, each in a run of its own."""
    payloads = [*(payloads or []), context.wait_event("approved")]
    if len(payloads) < 3:
        context.restart(payloads=payloads)
    return payloads


@task(takes_context=True)
def waits_for(context: TaskContext, workflow_id: str, timeout: float | None = None) -> Any:
    """Return the error code or the value of a workflow, or of a batch."""
    context.step("note", note, "begun")
    result = context.wait(WorkflowHandle(workflow_id), timeout=timeout)
    if result.is_ok() and isinstance(result.ok, dict):
        return {name: each.ok for name, each in result.ok.items()}
    return str(result.err_value.error_code) if result.is_err() else result.ok


@task(takes_context=True)
async def awaits(context: TaskContext, workflow_id: str) -> Any:
    """Return the payload of an event, and the value of a workflow."""
    payload = await context.await_event("approved")
    return [payload, (await context.await_(BatchHandle(workflow_id))).ok]


@task(takes_context=True)
def waits_for_a_task(context: TaskContext) -> None:
    context.wait(TaskHandle(context.task_result.id))


@task(takes_context=True)
def sleeps_as_node(context: TaskContext) -> str:
    """Sleep for an hour between two steps."""
    context.step("before", note, "before")
    context.sleep(3600)
    return context.step("after", note, "after")


@task(takes_context=True)
def two_keys(context: TaskContext, first: str, second: str) -> list[str]:
    """Return the keys of two steps, as each was first called."""
    names = {"first": first, "second": second}
    return [context.step(name, _noted, text, context.key(name)) for name, text in names.items()]


def _noted(text: str, key: str) -> str:
    note(text)
    return key


@task(takes_context=True, retention=0)
def forgotten(context: TaskContext) -> None:
    context.step("forgotten", note, "forgotten")
