"""The tasks of the chaos tests, each named after its guarantee: half-way it writes its key to a ledger."""

from __future__ import annotations

import asyncio
import os
import re
import time
import zlib
from contextlib import suppress

from django.db import connection, transaction

from horsies_django import RetryPolicy, task
from tests.chaos import ledger
from tests.jobs import tasks
from tests.jobs.models import Entry

#: So many retries that a task runs out of them only if something is wrong.
MANY_RETRIES = [1.0] * 15


#: Retries after a crash.
RETRY_CRASHES = RetryPolicy.fixed(MANY_RETRIES, auto_retry_for=["WORKER_CRASHED"], jitter=False)

#: Retries after a crash, and after errors of a body that uses the database during an outage.
RETRY_OUTAGES = RetryPolicy.fixed(MANY_RETRIES, auto_retry_for=["WORKER_CRASHED", "UNHANDLED_EXCEPTION"], jitter=False)


def _work(key: str, seconds: float) -> str:
    with ledger.running(key):
        time.sleep(seconds / 2)
        ledger.note(key)
        time.sleep(seconds / 2)
    return key


async def _awork(key: str, seconds: float) -> str:
    with ledger.running(key):
        await asyncio.sleep(seconds / 2)
        ledger.note(key)
        await asyncio.sleep(seconds / 2)
    return key


@task(retry_policy=RETRY_CRASHES)
def at_least_once(key: str, seconds: float) -> str:
    return _work(key, seconds)


@task(retry_policy=RETRY_CRASHES)
async def async_at_least_once(key: str, seconds: float) -> str:
    return await _awork(key, seconds)


@task
def at_most_once(key: str, seconds: float) -> str:
    return _work(key, seconds)


@task
async def async_at_most_once(key: str, seconds: float) -> str:
    return await _awork(key, seconds)


@task(atomic=True, retry_policy=RETRY_OUTAGES)
def exactly_once(key: str, seconds: float) -> str:
    """Write an entry instead of the ledger, because an effect that is rolled back has not happened."""
    with ledger.running(key):
        time.sleep(seconds / 2)
        Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
        time.sleep(seconds / 2)
    return key


@task(retry_policy=RETRY_OUTAGES)
def writing_at_least_once(key: str, seconds: float) -> str:
    """Write a row outside of any transaction. It is lost only if another body left a transaction open."""
    with ledger.running(key):
        Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
        ledger.note(key)
        time.sleep(seconds / 2)
    return key


@task(retry_policy=RETRY_OUTAGES)
def untidy_at_least_once(key: str, seconds: float) -> str:
    """Leave a transaction open, in one of three ways."""
    with ledger.running(key):
        ledger.note(key)
        way = zlib.crc32(key.encode()) % 3
        if way == 2:
            transaction.atomic().__enter__()
            Entry.objects.create(key=f"{key}.left", pid=os.getpid(), at=time.time())
        else:
            with connection.cursor() as cursor:
                cursor.execute(["BEGIN", "BEGIN; SET LOCAL ROLE pg_monitor"][way])
        time.sleep(seconds / 2)
    return key


@task(retry_policy=RETRY_CRASHES)
def stubborn_at_least_once(key: str, seconds: float) -> str:
    """Ignore every request to stop, for longer than a shutdown waits."""
    with ledger.running(key):
        end = time.monotonic() + 4 + seconds
        while time.monotonic() < end:
            with suppress(BaseException):
                time.sleep(0.05)
        ledger.note(key)
    return key


@task(timeout=1)
def hogging_at_most_once(key: str, seconds: float) -> str:
    """Hold the interpreter's lock until the process is killed."""
    with ledger.running(key):
        ledger.note(key)
        re.match(r"(a+)+$", "a" * 60 + "b")
    return key


@task
async def nap(seconds: float) -> int:
    """Sleep, and return the process id."""
    await asyncio.sleep(seconds)
    return os.getpid()


@task
def work(key: str, seconds: float) -> str:
    """Write an entry, then sleep."""
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    time.sleep(seconds)
    return key


#: Waits for its gate, and is retried if its worker dies.
hold_again = tasks.hold.with_options(
    retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)
)
