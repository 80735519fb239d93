"""Tasks with every kind of end."""

from __future__ import annotations

import os
import signal

from django.utils import timezone

from horsies_django import RetryPolicy, Snooze, task
from tests.jobs.models import Entry

RETRY = RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False)


class Broken(Exception):
    """Raised by bodies."""


@task
def succeed():
    pass


@task(retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["*"], jitter=False), exception_mapper={Broken: "BROKEN"})
def fail():
    raise Broken("no luck")


@task(retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["*"], jitter=False), exception_mapper={Broken: "BROKEN"})
async def afail():
    raise Broken("no luck")


@task(max_attempts=3, backoff=0)
def fail_thrice():
    raise Broken("no luck")


@task
def snooze():
    raise Snooze(3600)


@task(retry_policy=RETRY)
def die_once(key):
    """Kill the runner at the first attempt."""
    Entry.objects.create(key=key, at=timezone.now().timestamp())
    if Entry.objects.filter(key=key).count() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@task
def die():
    os.kill(os.getpid(), signal.SIGKILL)
