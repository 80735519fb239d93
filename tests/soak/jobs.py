"""The tasks of the soak."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from horsies_django import Every, Gather, RetryPolicy, TaskContext, Unique, Workflow, schedule, task


@task
def quick(number: int) -> int:
    """Return its argument."""
    return number


@task
async def waiting(seconds: float) -> None:
    """Wait as if for a network."""
    await asyncio.sleep(seconds)


@task
def working(seconds: float) -> str:
    """Keep a thread, and return a result of some size."""
    time.sleep(seconds)
    return "x" * 2_000


@task(retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False), takes_context=True)
def unreliable(context: TaskContext, fails: int) -> int:
    """Fail as often as asked, then return."""
    if context.attempt <= fails:
        raise RuntimeError(f"attempt {context.attempt}")
    return fails


@task(queue_name="limited")
def limited() -> None:
    """Run in a queue with limits."""


@task(gather=Gather("{customer}", max_size=20, max_delay=2))
def gathered(calls: list[dict[str, Any]]) -> int:
    """Handle many calls at once."""
    return len(calls)


@task(unique=Unique())
def unique(number: int) -> int:
    """Return its argument; a second call of the same number joins the first."""
    return number


@task
def scheduled() -> None:
    """Run every five seconds."""


schedule("soak", scheduled, Every(seconds=5))


def flow() -> Workflow[int]:
    """Return a workflow of a start, a fan of three, and an end that may fail."""
    start = quick.node()(number=1)
    fan = [quick.node(waits_for=[start])(number=number) for number in range(3)]
    end = unreliable.node(waits_for=fan)(fails=1)
    return Workflow("soak", [start, *fan, end], output=end)
