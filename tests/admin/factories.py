"""Rows of each model, in each state that some action applies to.

Add a row here for a new model, or when an action applies to a new state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Model

from horsies_django import Workflow as Definition
from horsies_django.models import ErrorGroup, Heartbeat, Limit, Queue, Schedule, Task, Worker, Workflow
from tests.jobs import tasks

LONG_AGO, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2126, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def _task(**columns: Any) -> Task:
    return Task.objects.create(task_name=tasks.noop.module_path, **columns)


def _waiting() -> Task:
    return _task()


def _scheduled() -> Task:
    return _task(deferred=True, enqueued_at=LATER)


def _awaiting() -> Task:
    return _task(deferred=True, enqueued_at=LATER, claim=1, waits_for="event:approved")


def _running() -> Task:
    return _task(
        status="RUNNING",
        claim=1,
        attempt=1,
        claimed_by_worker_id="w",
        claimed_at=LONG_AGO,
        started_at=LONG_AGO,
    )


def _failed() -> Task:
    result = {"err": {"error_code": "ODD", "message": "<b>odd</b>", "data": None}}
    return _task(status="FAILED", attempt=1, claim=1, failed_at=LONG_AGO, error_code="ODD", result=result)


def _workflow() -> Model:
    handle = Definition("made", [tasks.noop.node()()]).start()
    return Workflow.objects.get(pk=handle.id)


def _paused_workflow() -> Model:
    handle = Definition("made", [tasks.noop.node()()]).start()
    assert handle.pause()
    return Workflow.objects.get(pk=handle.id)


def _cancelled_workflow() -> Model:
    handle = Definition("made", [tasks.noop.node()()]).start()
    assert handle.cancel()
    return Workflow.objects.get(pk=handle.id)


def _heartbeat() -> Model:
    return Heartbeat.objects.create(task=_running(), role="runner", sender_id="w", hostname="h", pid=1)


def _schedule(name: str, **columns: Any) -> Schedule:
    schedule = Schedule(name=name, task_name=tasks.noop.module_path, timing="every:300", **columns)
    schedule.save()
    return schedule


def _limit() -> Model:
    key = "tests.jobs.limited.two_per_user:a"
    _task(limit_key=key)
    _task(limit_key=key, deferred=True, blocked=True)
    return Limit.objects.create(key=key, max_concurrency=1, rate="5/m")


def _error_group() -> Model:
    task = _failed()
    task.fingerprint = "0123456789ab"
    task.save()
    return ErrorGroup.objects.create(
        fingerprint="0123456789ab",
        exception_class="shop.errors.Refused",
        error_code="ODD",
        location="shop.tasks.charge",
        first_seen_at=LONG_AGO,
        last_seen_at=LONG_AGO,
        last_attempt_id=1,
    )


#: By model name. A proxy model uses the rows of its concrete model.
MAKERS: dict[str, tuple[Callable[[], Model], ...]] = {
    "task": (_waiting, _scheduled, _awaiting, _running, _failed),
    "workflow": (_workflow, _paused_workflow, _cancelled_workflow),
    "queue": (lambda: Queue.objects.create(name="free"), lambda: Queue.objects.create(name="held", paused=True)),
    "schedule": (
        lambda: _schedule("free"),
        lambda: _schedule("held", enabled=False),
        lambda: _schedule("made", source="tests"),
    ),
    "worker": (
        lambda: Worker.objects.create(id="w", hostname="h", pid=1),
        lambda: Worker.objects.create(id="w2", hostname="h", pid=2, quiet_since=LONG_AGO),
    ),
    "heartbeat": (_heartbeat,),
    "limit": (_limit,),
    "errorgroup": (_error_group,),
}


def create_rows(model: type[Model]) -> list[Model]:
    """Create and return the rows of ``model``."""
    name = str(model._meta.concrete_model._meta.model_name)
    assert name in MAKERS, f"{__name__} has no row of {name}: add one"
    return [make() for make in MAKERS[name]]
