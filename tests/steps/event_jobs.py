"""Bodies that wait for events and workflows."""

from __future__ import annotations

from typing import Any

from horsies_django import TaskContext, task
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
