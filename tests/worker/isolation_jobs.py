"""Tasks that leave state behind, and tasks that report what they find."""

from __future__ import annotations

from contextvars import ContextVar

from django.core.cache import caches
from django.utils import timezone, translation

from horsies_django import task
from horsies_django.compat import task_backends
from tests.jobs.tasks import noop

tenant: ContextVar[str] = ContextVar("tenant", default="none")


def found():
    """What a body may have left here."""
    return [tenant.get(), translation.get_language(), timezone.get_current_timezone_name()]


@task
def leave():
    """Set all of it and restore nothing."""
    tenant.set("acme")
    translation.activate("de")
    timezone.activate("Asia/Tokyo")


@task
def report():
    """Report what is there."""
    return found()


@task
def identities():
    """Use a cache and a task backend; report which objects they are."""
    caches["default"].get("key")
    return [id(caches["default"]), id(task_backends["default"]), noop.send().replayed]
