"""Tasks that change their context, and tasks that report the context they run in."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from django.core.cache import caches
from django.urls import set_script_prefix
from django.utils import timezone, translation

from horsies_django import task
from horsies_django.core.compat import task_backends
from tests.jobs.tasks import noop

tenant: ContextVar[str] = ContextVar("tenant", default="none")


def found():
    """Return the context that a body may have changed."""
    return [tenant.get(), translation.get_language(), timezone.get_current_timezone_name()]


def change():
    """Change the whole context and restore nothing."""
    tenant.set("acme")
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    set_script_prefix("/acme/")


@task
def leave():
    change()


@task(atomic=True, takes_context=True)
def leave_atomically(context):
    change()


@task(takes_context=True)
async def aleave(context):
    """Change the context of the coroutine and of a thread that coroutines share."""
    change()
    await asyncio.get_running_loop().run_in_executor(None, change)


@task
async def aleave_and_fail():
    change()
    raise ValueError("no luck")


@task
def report():
    return [found()]


@task(atomic=True, takes_context=True)
def report_atomically(context):
    return [found()]


@task
async def areport():
    """Report the context of the coroutine and of the threads that coroutines share."""
    shared = [await asyncio.get_running_loop().run_in_executor(None, found) for _ in range(3)]
    return [found(), await asyncio.to_thread(found), *shared]


@task
def identities():
    """Use a cache and a task backend; report their identities."""
    caches["default"].get("key")
    return [id(caches["default"]), id(task_backends["default"]), noop.send().replayed]
