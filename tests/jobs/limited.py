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


@task(concurrency_key="{key}", max_concurrency=2)
def two_of(key: str, seconds: float = 0.0) -> str:
    ran(key, seconds)
    return key


@task(concurrency_key=lambda key, **_: key or None, max_concurrency=1)
def one_of(key: str) -> None:
    """No limit for the empty key."""


@task(max_concurrency=1)
def alone() -> None: ...


@task(concurrency_key="{key}", rate_limit="20/s, 4")
def often(key: str) -> None:
    ran(key, 0)


@task(concurrency_key="{key}", max_concurrency=1, retry_policy=RetryPolicy.fixed([3_600], auto_retry_for=["*"]))
def fails(key: str) -> None:
    raise ValueError(key)


@task(concurrency_key="{key}", max_concurrency=1)
def snoozes(key: str) -> None:
    raise Snooze(3_600)


@task(concurrency_key="{order[customer]}", concurrency_scope="orders", max_concurrency=1)
def ship(order: dict[str, str]) -> None: ...


@task(concurrency_key="{order[customer]}", concurrency_scope="orders", max_concurrency=1)
async def invoice(order: dict[str, str]) -> None: ...


@task(unique=Unique(by=("name",), on_conflict="replace"), concurrency_key="{key}", max_concurrency=1)
def latest(name: str, key: str) -> None: ...
