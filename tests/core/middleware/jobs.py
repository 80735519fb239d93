"""Tasks that report the values that middleware has made active."""

from __future__ import annotations

import asyncio
import threading
import time

from asgiref.sync import sync_to_async
from django.utils import timezone, translation

from horsies_django import Gather, RetryPolicy, WorkflowDefinition, task
from tests.core.middleware import samples
from tests.jobs.models import Entry


def _active_values() -> dict[str, object]:
    return {
        "language": translation.get_language(),
        "timezone": timezone.get_current_timezone_name(),
        "tenant": samples.tenant.get(),
    }


@task
def look(*args, **kwargs):
    samples.seen.append("body")
    samples.threads.append(threading.get_ident())
    return _active_values()


@task
async def alook(*args, **kwargs):
    samples.seen.append("body")
    samples.threads.append(threading.get_ident())
    return _active_values()


@task
async def alook_into_the_database():
    await Entry.objects.acreate(key="from a coroutine")
    return await sync_to_async(_active_values)()


@task
def fail():
    raise ValueError("no luck")


@task
async def afail():
    raise ValueError("no luck")


@task
def takes_one(number):
    return number


@task
async def atakes_one(number):
    return number


@task(atomic=True)
def write_atomically(key):
    Entry.objects.create(key=key)


@task(timeout=0.3)
def sleep_too_long():
    for _ in range(1_000):
        time.sleep(0.01)


@task(timeout=0.3)
async def asleep_too_long():
    await asyncio.sleep(10)


@task(takes_context=True, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False))
def look_at_the_second(context):
    if context.attempt == 1:
        raise ValueError("again")
    return _active_values() | {"metadata": context.metadata}


@task(takes_context=True)
async def ametadata(context):
    return context.metadata


@task(metadata={"tenant": "other"})
def forging():
    """Has metadata with the key of a header."""


class Forging(WorkflowDefinition):
    """A subworkflow with a node whose metadata has the key of a header."""

    forged = forging.node()()

    class Meta:
        definition_key = "tests.core.middleware.forging"


@task(metadata={"team": "billing", "shown": "task"})
def labelled():
    pass


@task
def several():
    return [1, 2]


@task
def one_of(item):
    return _active_values()


@task(gather=Gather("all"))
def gathered(calls: list[dict[str, int]]):
    pass


class Inner(WorkflowDefinition):
    """A subworkflow with a node that reports the active values."""

    within = look.node()()

    class Meta:
        definition_key = "tests.core.middleware.inner"
        output = "within"
