"""Long work whose records the admin shows."""

from __future__ import annotations

from typing import Any

from horsies_django import TaskContext, task


def charge(amount: int) -> dict[str, Any]:
    return {"id": "<b>ch_1</b>", "amount": amount, "card": "4242 4242"}


def refuse() -> None:
    raise ValueError("<i>refused</i>")


@task(takes_context=True, sensitive={"card"})
def order(context: TaskContext, timeout: float | None = None) -> Any:
    """Charge, and wait for a person."""
    context.step("charge", charge, 5)
    context.step("fetch_token", str, "s3cret")
    context.step("note", str, "x" * 300)
    return context.wait_event("approved", timeout=timeout)


@task(takes_context=True)
def many(context: TaskContext, count: int) -> None:
    """Take many steps."""
    for number in range(count):
        context.step("note", int, number)


@task(takes_context=True)
def refused(context: TaskContext) -> None:
    """Fail in a step."""
    context.step("refuse", refuse)


@task(takes_context=True)
def sleeper(context: TaskContext) -> None:
    """Sleep for an hour."""
    context.sleep(3_600)
