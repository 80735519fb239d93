"""Tasks with limits by key, which record when they ran."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from horsies_django import RetryPolicy, Snooze, Unique, task
from tests.jobs.models import Entry


def run_and_record(key: str, seconds: float) -> None:
    began = time.time()
    time.sleep(seconds)
    Entry.objects.create(key=f"{key} {began} {time.time()}", pid=os.getpid())


@contextmanager
def deployed(job: Any, **options: object) -> Iterator[None]:
    """Run this process with code that declares other options for a task."""
    before = {name: getattr(job, name) for name in options}
    try:
        for name, value in options.items():
            object.__setattr__(job, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(job, name, value)


@task(concurrency_key="{user}", max_concurrency=2)
def two_per_user(user: str, seconds: float = 0.0) -> str:
    run_and_record(user, seconds)
    return user


@task(concurrency_key=lambda user, **_: user or None, max_concurrency=1)
def one_per_user(user: str) -> None:
    """Have no limit for an empty user."""


@task(max_concurrency=1)
def alone() -> None: ...


@task(concurrency_key="{user}", rate_limit="20/s, 4")
def rate_limited(user: str) -> None:
    run_and_record(user, 0)


@task(concurrency_key="{user}", rate_limit="4/h")
def four_an_hour(user: str) -> None: ...


@task(concurrency_key="{user}", max_concurrency=1, retry_policy=RetryPolicy.fixed([3_600], auto_retry_for=["*"]))
def fails(user: str) -> None:
    raise ValueError(user)


@task(concurrency_key="{user}", max_concurrency=1)
def snoozes(user: str) -> None:
    raise Snooze(3_600)


@task(concurrency_key="{order[customer]}", concurrency_scope="orders", max_concurrency=1)
def ship(order: dict[str, str]) -> None: ...


@task(concurrency_key="{order[customer]}", concurrency_scope="orders", max_concurrency=1)
async def invoice(order: dict[str, str]) -> None: ...


@task(unique=Unique(by=("name",), on_conflict="replace"), concurrency_key="{user}", max_concurrency=1)
def latest(name: str, user: str) -> None: ...
