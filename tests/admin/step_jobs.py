"""Long work whose records the admin shows."""

from __future__ import annotations

from typing import Any

from horsies_django import Batch, BatchHandle, TaskContext, task
from tests.jobs.models import Item


def charge(amount: int) -> dict[str, Any]:
    return {"id": "<b>ch_1</b>", "amount": amount, "card": "4242 4242"}


def refuse(rest: str = "") -> None:
    raise ValueError("<i>refused</i>" + rest)


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
def refused(context: TaskContext, rest: str = "") -> None:
    """Fail in a step."""
    context.step("refuse", refuse, rest)


@task(takes_context=True)
def sleeper(context: TaskContext) -> None:
    """Sleep for an hour."""
    context.sleep(3_600)


@task(sensitive={"iban"})
def account() -> dict[str, str]:
    """Return what its own mask hides."""
    return {"iban": "DE02 1203"}


def start_accounts() -> str:
    with Batch("accounts") as batch:
        batch.add(account)
    return str(batch.handle.id)


@task(takes_context=True)
def waits_for_accounts(context: TaskContext) -> None:
    """Wait for a batch whose tasks have another mask than this one."""
    assert context.wait(BatchHandle(context.step("start", start_accounts, atomic=True))).is_ok()


@task(takes_context=True, sensitive={"text"})
def loop(context: TaskContext) -> None:
    """Fail in the second turn of a loop in the order of a sensitive field."""
    for number, turn in enumerate(context.batches(Item.objects.order_by("-text"), size=1)):
        with turn:
            if number:
                raise ValueError("the second turn")
