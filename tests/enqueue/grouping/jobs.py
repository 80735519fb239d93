"""Tasks that gather their calls."""

from __future__ import annotations

import enum
import os
import time
from pathlib import Path
from typing import Any

from horsies_django import Gather, RetryPolicy, TaskContext, task

#: Longer than any test: such a group runs only when it is full.
LONG = 3_600.0


@task(gather=Gather("customer-{customer_id}", max_size=100, max_delay=LONG))
def mail(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items


@task(gather=Gather("{key}", max_size=3, max_delay=LONG))
def three(items: list[dict[str, Any]]) -> list[Any]:
    return [item["value"] for item in items]


@task(
    gather=Gather("all", max_size=7, max_delay=0.3, quiet=0.1),
    retry_policy=RetryPolicy.fixed([1] * 5, auto_retry_for=["WORKER_CRASHED"], jitter=False),
)
def busy(items: list[dict[str, Any]]) -> list[Any]:
    time.sleep(0.02)
    return [item["value"] for item in items]


@task(gather=Gather("all", max_size=10, max_delay=0.4))
def soon(items: list[dict[str, Any]]) -> list[Any]:
    return [item["value"] for item in items]


class Colour(enum.Enum):
    RED = "red"


@task(gather=Gather("{kind}", max_size=3, max_delay=LONG))
def by_kind(items: list[dict[str, Any]]) -> int:
    return len(items)


@task(gather=Gather(lambda colour, **_: colour.value, max_size=3, max_delay=LONG))
def by_colour(items: list[dict[str, Any]]) -> int:
    return len(items)


@task(gather=Gather("all", max_size=1_000, max_delay=None, quiet=2))
def quiet(items: list[dict[str, Any]]) -> int:
    return len(items)


@task(gather=Gather("all", max_size=2, max_delay=LONG), takes_context=True)
async def coroutine(context: TaskContext, items: list[dict[str, Any]]) -> list[Any]:
    return [context.attempt, *(item["value"] for item in items)]


@task(
    gather=Gather("all", max_size=2, max_delay=LONG),
    retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False),
)
def kill_runner_once(items: list[dict[str, Any]]) -> list[Any]:
    """Kill the runner at the first attempt."""
    path = Path(items[0]["path"])
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), 9)
        time.sleep(60)
    return [item["value"] for item in items]
