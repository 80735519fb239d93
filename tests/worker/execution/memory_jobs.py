"""Bodies that fail with a large local variable, and a body that counts which of these variables are still there."""

from __future__ import annotations

import gc
import time
import weakref

from asgiref.sync import sync_to_async
from django.db import connection

from horsies_django import task
from horsies_django.core.compat import task_finished
from tests.jobs.entries import write_entry

references: list[weakref.ref[Large]] = []


class Large:
    """Stands for a value that takes much memory."""


def fail_with_a_local() -> None:
    gc.disable()  # so that a value in a reference cycle stays
    large = Large()
    references.append(weakref.ref(large))
    try:
        raise LookupError(str(large))
    except LookupError as error:
        cause = error
    raise ValueError("no luck") from cause


@task
def fail() -> None:
    fail_with_a_local()


@task(max_attempts=2, backoff=0)
def fail_twice() -> None:
    fail_with_a_local()


@task(atomic=True)
def fail_atomically() -> None:
    fail_with_a_local()


@task
async def afail() -> None:
    fail_with_a_local()


@task
async def fail_in_a_group() -> None:
    try:
        fail_with_a_local()
    except ValueError as error:
        raise ExceptionGroup("several", [error]) from None


@task
def receive_signals() -> None:
    task_finished.connect(receive, weak=False)


def receive(task_result, **_):
    write_entry(f"received {task_result.id}")


@task
def count_locals() -> list[int]:
    """Return how many values were made, and how many are there after a while."""
    limit = time.monotonic() + 10
    while any(reference() for reference in references) and time.monotonic() < limit:
        time.sleep(0.01)
    return [len(references), sum(reference() is not None for reference in references)]


def query() -> int:
    """Return how many queries the log of this thread's connection has, and make one."""
    count = len(connection.queries)
    write_entry("a query")
    return count


@task
def count_queries() -> int:
    return query()


@task
async def acount_queries() -> int:
    return await sync_to_async(query, thread_sensitive=False)()
