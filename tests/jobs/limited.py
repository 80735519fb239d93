"""Tasks with limits by key, which leave word of when they ran."""

from __future__ import annotations

import os
import time

from horsies_django import RetryPolicy, Snooze, Unique, task
from tests.jobs.models import Entry


def ran(key: str, seconds: float) -> None:
    began = time.time()
    time.sleep(seconds)
    Entry.objects.create(key=f"{key} {began} {time.time()}", pid=os.getpid())


@task(concurrency_key="{who}", max_concurrency=2)
def two_of(who: str, seconds: float = 0.0) -> str:
    ran(who, seconds)
    return who


@task(concurrency_key=lambda who, **_: who or None, max_concurrency=1)
def one_of(who: str) -> None:
    """No limit for nobody."""


@task(max_concurrency=1)
def alone() -> None: ...


@task(concurrency_key="{who}", rate_limit="20/s, 4")
def often(who: str) -> None:
    ran(who, 0)


@task(concurrency_key="{who}", max_concurrency=1, retry_policy=RetryPolicy.fixed([3_600], auto_retry_for=["*"]))
def fails(who: str) -> None:
    raise ValueError(who)


@task(concurrency_key="{who}", max_concurrency=1)
def snoozes(who: str) -> None:
    raise Snooze(3_600)


@task(concurrency_key="{order[customer]}", concurrency_scope="orders", max_concurrency=1)
def ship(order: dict[str, str]) -> None: ...


@task(concurrency_key="{order[customer]}", concurrency_scope="orders", max_concurrency=1)
async def invoice(order: dict[str, str]) -> None: ...


@task(unique=Unique(by=("name",), on_conflict="replace"), concurrency_key="{who}", max_concurrency=1)
def latest(name: str, who: str) -> None: ...
