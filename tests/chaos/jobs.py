"""The tasks of the chaos, each named after what is promised of it: they leave their key in a ledger half-way."""

from __future__ import annotations

import asyncio
import os
import time

from horsies_django import RetryPolicy, task
from tests.chaos import ledger
from tests.jobs import tasks
from tests.jobs.models import Entry

#: Enough retries that a task runs out of them only if something is wrong, or if its luck is very bad.
OFTEN = [1.0] * 15


@task(retry_policy=RetryPolicy.fixed(OFTEN, auto_retry_for=["WORKER_CRASHED"], jitter=False))
def at_least_once(key: str, seconds: float) -> str:
    time.sleep(seconds / 2)
    ledger.note(key)
    time.sleep(seconds / 2)
    return key


@task(retry_policy=RetryPolicy.fixed(OFTEN, auto_retry_for=["WORKER_CRASHED"], jitter=False))
async def async_at_least_once(key: str, seconds: float) -> str:
    await asyncio.sleep(seconds / 2)
    ledger.note(key)
    await asyncio.sleep(seconds / 2)
    return key


@task
def at_most_once(key: str, seconds: float) -> str:
    time.sleep(seconds / 2)
    ledger.note(key)
    time.sleep(seconds / 2)
    return key


@task
async def async_at_most_once(key: str, seconds: float) -> str:
    await asyncio.sleep(seconds / 2)
    ledger.note(key)
    await asyncio.sleep(seconds / 2)
    return key


@task(
    atomic=True,
    retry_policy=RetryPolicy.fixed(OFTEN, auto_retry_for=["WORKER_CRASHED", "UNHANDLED_EXCEPTION"], jitter=False),
)
def exactly_once(key: str, seconds: float) -> str:
    """Its ledger is a row: what the database does not keep has not happened."""
    time.sleep(seconds / 2)
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    time.sleep(seconds / 2)
    return key


@task
async def nap(seconds: float) -> int:
    """Sleep, and tell in which process."""
    await asyncio.sleep(seconds)
    return os.getpid()


@task
def work(key: str, seconds: float) -> str:
    """Leave an entry, then take some time."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    time.sleep(seconds)
    return key


#: Waits for its gate, and once more if its worker dies.
hold_again = tasks.hold.with_options(
    retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
)
