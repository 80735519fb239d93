"""Fixtures that forget the schedules a test declares, and helpers to make rows and let them be due."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies_django.core.backends import config_of
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Schedule
from horsies_django.schedules.declaration import declarations
from horsies_django.schedules.scheduler import Scheduler
from tests.schedules import jobs  # noqa: F401  # registers the workflows that rows name


@pytest.fixture(autouse=True)
def _own_declarations():
    """Forget the schedules that a test declares."""
    before = {key: list(found) for key, found in declarations.by_place.items()}
    declarations.by_place.clear()
    yield
    declarations.by_place.clear()
    declarations.by_place.update(before)


@pytest.fixture
def scheduler(db):
    """Return a scheduler on this thread's connection."""
    return Scheduler(config_of("default"), "default")


def make(name="s", timing="every:3600", task="tests.jobs.tasks.noop", **columns):
    """Create a schedule row as a user would."""
    return Schedule.objects.create(name=name, timing=timing, task_name=task, **columns)


def make_due(seconds, **filters):
    """Let the next runs have been due for that many seconds by the database's clock."""
    assert Schedule.objects.filter(**filters).update(next_run_at=NowPlus(-seconds))


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)
