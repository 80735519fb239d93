"""Tasks that set something in Sentry's scope and fail."""

from __future__ import annotations

import asyncio
import time

import sentry_sdk

from horsies_django import Discard, TaskError, TaskResult, task


@task
def fail(user: str):
    sentry_sdk.set_user({"id": user})
    sentry_sdk.set_tag("step", "charge")
    sentry_sdk.add_breadcrumb(message=f"card of {user}")
    raise LookupError(f"no card {user}")


@task
async def afail(user: str):
    sentry_sdk.set_user({"id": user})
    sentry_sdk.set_tag("step", "charge")
    await asyncio.sleep(0.2)
    sentry_sdk.add_breadcrumb(message=f"card of {user}")
    raise LookupError(f"no card {user}")


@task(max_attempts=2, backoff=0)
def fail_twice(user: str):
    raise LookupError(f"no card {user}")


@task
def discard():
    raise Discard("not needed")


@task
def return_an_error():
    return TaskResult(err=TaskError(error_code="NO_STOCK", message="none left"))


@task(timeout=0.3)
def sleep_too_long():
    for _ in range(1_000):
        time.sleep(0.01)


@task
def succeed(): ...
