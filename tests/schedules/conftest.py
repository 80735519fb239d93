"""Schedules that a test declares are gone after it, and rows are made due by the database's clock."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies_django.core.backends import config_of
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Schedule
from horsies_django.schedules.declaration import declarations
from horsies_django.schedules.scheduler import Scheduler
from tests.schedules import jobs  # noqa: F401  # the workflow that rows name


@pytest.fixture(autouse=True)
def _own_declarations():
    """Forget what a test declares."""
    before = {key: list(found) for key, found in declarations.by_place.items()}
    declarations.by_place.clear()
    yield
    declarations.by_place.clear()
    declarations.by_place.update(before)


@pytest.fixture
def beat(db):
    """Return a beat on this thread's connection."""
    return Scheduler(config_of("default"), "default")


def make(name="s", timing="every:3600", task="tests.jobs.tasks.noop", **columns):
    """Make a row by hand."""
    return Schedule.objects.create(name=name, timing=timing, task_name=task, **columns)


def put_back(seconds, **which):
    """Let a next run have been due for so many seconds, by the database's clock."""
    assert Schedule.objects.filter(**which).update(next_run_at=NowPlus(-seconds))


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)
