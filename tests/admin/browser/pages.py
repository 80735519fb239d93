"""Rows of every kind, and the address of every page of the admin: add new pages here.

Names and texts that users choose contain HTML.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote_plus

from django.contrib.admin.utils import quote
from django.db.models.functions import Now
from django.urls import reverse

from horsies_django.core.status import BeatRole
from horsies_django.models import (
    ErrorGroup,
    Heartbeat,
    Limit,
    Queue,
    Rollup,
    Schedule,
    Task,
    TaskAttempt,
    TaskOutput,
    TaskStep,
    Worker,
    WorkflowEvent,
)
from tests.about.models import Order
from tests.admin.factories import LATER, LONG_AGO
from tests.admin.test_workflows_admin import diamond, row
from tests.jobs import tasks

#: Short enough for every column.
HOSTILE: Final = '<script>document.title = "taken"</script><img src="x">'

_FINGERPRINT: Final = "0123456789ab"

_LONG: Final = "a-name-that-is-as-long-as-they-come-" + "0" * 60


def create_pages() -> dict[str, str]:
    """Create rows of every kind, without a worker process; return the address of each page by its name."""
    queue = Queue.objects.create(name=HOSTILE, paused=True, max_concurrency=5)
    worker = _worker(HOSTILE)
    _worker(_LONG[:64])
    pages = {
        "index": reverse("admin:index"),
        "overview": _list("overview"),
        "overview of a day": _list("overview", "?period=24h"),
        "errors": _list("errorgroup", f"?period=7d&task={quote_plus(HOSTILE)}"),
        "error": _page("errorgroup", _FINGERPRINT, "?period=7d"),
        "running now": _list("task", "?state=running"),
        "tasks by name": reverse("admin:horsies_django_task_names"),
        "task name": reverse("admin:horsies_django_task_name", args=[HOSTILE]),
        **_pages_of_tasks(worker),
        **_pages_of_rows(worker),
        **_pages_of_workflows(),
        "queues": _list("queue"),
        "queue": _page("queue", queue.pk),
        "queue without a row": _page("queue", "~default"),
        "new queue": reverse("admin:horsies_django_queue_add"),
        **_pages_of_schedules(),
        "workers": _list("worker"),
        "worker": _page("worker", worker),
        "stop a worker": _confirmation("worker", worker, "stop"),
        "limits": _list("limit"),
        "limit": _page("limit", _limit()),
        "heartbeats": _list("heartbeat"),
        "heartbeat": _page("heartbeat", Heartbeat.objects.values_list("pk", flat=True)[0]),
    }
    columns = {"queue_name": HOSTILE, "task_name": HOSTILE, "error_code": HOSTILE}
    for outcome, fingerprint in (("COMPLETED", ""), ("FAILED", _FINGERPRINT)):
        Rollup.objects.create(span="H", start=Now(), count=3, outcome=outcome, fingerprint=fingerprint, **columns)
    ErrorGroup.objects.create(
        fingerprint=_FINGERPRINT, exception_class=HOSTILE, error_code=HOSTILE, location=HOSTILE, first_seen_at=Now(),
        last_seen_at=Now(), last_attempt_id=TaskAttempt.objects.filter(fingerprint=_FINGERPRINT).latest("pk").pk,
    )  # fmt: skip
    return pages


def _pages_of_tasks(worker: str) -> dict[str, str]:
    result = {"err": {"error_code": HOSTILE, "message": HOSTILE, "exception": {"traceback": HOSTILE}}}
    failed = _task(
        status="FAILED", failed_at=Now(), error_code=HOSTILE, result=result, args=[HOSTILE, "x" * 300],
        kwargs={HOSTILE: 1}, queue_name=HOSTILE, attempt=2, claim=2, sent_at=LONG_AGO,
        claimed_at=LONG_AGO, started_at=LONG_AGO, fingerprint=_FINGERPRINT,
    )  # fmt: skip
    running = _task(
        status="RUNNING", attempt=1, claim=1, claimed_by_worker_id=worker, claimed_at=Now(), started_at=Now(),
        progress={"done": 1, "total": 3, "message": HOSTILE}, metadata={HOSTILE: HOSTILE},
    )  # fmt: skip
    completed = _task(status="COMPLETED", completed_at=Now(), result={"ok": HOSTILE}, attempt=1, claim=1)
    for number, outcome in ((1, "FAILED"), (2, "FAILED")):
        TaskAttempt.objects.create(
            task=failed, attempt=number, outcome=outcome, due_at=LONG_AGO, started_at=LONG_AGO, finished_at=LONG_AGO,
            traceback=HOSTILE, error_message=HOSTILE, error_code=HOSTILE, worker_id=worker, hostname=HOSTILE, pid=1,
            fingerprint=_FINGERPRINT, location=HOSTILE,
        )  # fmt: skip
    record = {"level": HOSTILE, "logger": HOSTILE, "message": HOSTILE}
    for number, data in enumerate([HOSTILE, {HOSTILE: ["x" * 300, HOSTILE]}, record, {**record, "level": "ERROR"}], 1):
        kind = "log" if number > 2 else "output"
        TaskOutput.objects.bulk_create(
            TaskOutput(task=task, attempt=task.attempt, sequence=number, kind=kind, data=data)
            for task in (failed, running)
        )
    awaiting = _task(deferred=True, enqueued_at=LATER, claim=2, waits_for=f"event:{HOSTILE}")
    kinds = (("a-step", "step", "COMPLETED"), ("failed", "step", "FAILED"), (f"event:{HOSTILE}", "event", "WAITING"))
    for number, (name, kind, status) in enumerate(kinds * 40, 1):
        TaskStep.objects.create(
            task=awaiting, name=name, number=number, kind=kind, status=status, started_at=LONG_AGO, due_at=LATER,
            position=None if status == "WAITING" else number, completed_at=Now() if status != "WAITING" else None,
            result={"err": result["err"]} if status == "FAILED" else {"ok": {HOSTILE: ["x" * 90, HOSTILE]}},
        )  # fmt: skip
    Heartbeat.objects.create(task_id=running.pk, role=BeatRole.RUNNER, sender_id=worker, hostname=HOSTILE, pid=1)
    Task.objects.bulk_create(Task(task_name=f"shop.tasks.task_{number}", priority=number) for number in range(60))
    return {
        "tasks": _list("task"),
        "failed tasks": _list("task", "?state=failed"),
        "tasks, searched for": _list("task", "?q=shop&sent=hour"),
        "no tasks": _list("task", "?q=nothing-has-this-name"),
        "failed task": _page("task", failed.pk),
        "running task": _page("task", running.pk),
        "completed task": _page("task", completed.pk),
        "scheduled task": _page("task", _task(deferred=True, enqueued_at=LATER).pk),
        "awaiting task": _page("task", awaiting.pk),
        "tasks that wait for an event": _list("task", f"?waits_for={quote_plus(f'event:{HOSTILE}')}"),
        "send an event to a task": _confirmation("task", awaiting.pk, "send_event"),
        "task without a worker": _page("task", _task(queue_name=HOSTILE).pk),
        "run a task again": reverse("admin:horsies_django_task_run_again", args=[_again().pk]),
        "history of a task": reverse("admin:horsies_django_task_history", args=[failed.pk]),
        "cancel a task that runs": _confirmation("task", running.pk, "cancel_running"),
        "delete a task": _confirmation("task", completed.pk, "delete"),
        "move a task": _confirmation("task", tasks.noop.send().id, "move"),
    }


def _pages_of_rows(worker: str) -> dict[str, str]:
    """Return the page of a row in its own admin, and the pages of the tasks about it."""
    order = Order.objects.create()
    about = {"about_model": "about.Order", "about_id": str(order.pk)}
    ended = {"attempt": 1, "claim": 1, "sent_at": LONG_AGO, "claimed_at": LONG_AGO, "started_at": LONG_AGO}
    failed = _task(status="FAILED", failed_at=Now(), error_code=HOSTILE, **ended, **about)
    TaskAttempt.objects.create(
        task=failed, attempt=1, outcome="FAILED", due_at=LONG_AGO, started_at=LONG_AGO, finished_at=LONG_AGO,
        error_message=HOSTILE * 9, error_code=HOSTILE, exception_class="shop.errors.PaymentError",
    )  # fmt: skip
    _task(status="COMPLETED", completed_at=Now(), result={"ok": 1}, **ended, **about)
    _task(status="RUNNING", claimed_by_worker_id=worker, **ended, **about)
    _task(deferred=True, enqueued_at=LATER, claim=2, waits_for=f"event:{HOSTILE}", **about)
    _task(**about)
    return {
        "row with tasks": reverse("admin:about_order_change", args=[order.pk]),
        "row without tasks": reverse("admin:about_order_change", args=[Order.objects.create().pk]),
        "task about a row": _page("task", failed.pk),
        "tasks about a row": _list("task", f"?about=about.Order:{order.pk}"),
    }


def _pages_of_workflows() -> dict[str, str]:
    new = diamond().start()
    hostile = {"node_id": HOSTILE, "task_name": HOSTILE, "error_code": HOSTILE, "result": {"err": HOSTILE}}
    failed = row(
        HOSTILE,
        {**hostile, "status": "FAILED", "completed_at": Now()},
        {"node_id": "left-out", "status": "SKIPPED", "waits_for": [0]},
        {"node_id": _LONG, "kind": "event", "event_name": HOSTILE, "status": "ENQUEUED"},
        status="FAILED",
        error={"error_code": HOSTILE, "message": HOSTILE, "node_id": HOSTILE},
        result=HOSTILE,
        unique_key=HOSTILE,
    )
    WorkflowEvent.objects.create(workflow_id=failed.id, name=HOSTILE, payload={HOSTILE: HOSTILE})
    items = [{"map_index": 1, "status": "COMPLETED" if item < 90 else "RUNNING"} for item in range(100)]
    mapped = row("map", {"status": "COMPLETED"}, {"kind": "map", "status": "RUNNING", "waits_for": [0]}, *items)
    many = row(
        "many", *({"waits_for": [index // 2] if index else [], "task_name": f"t{index}"} for index in range(120))
    )
    return {
        "workflows": _list("workflow"),
        "no workflows": _list("workflow", "?q=nothing-has-this-name"),
        "new workflow": _page("workflow", new.id),
        "failed workflow": _page("workflow", failed.id),
        "batch": _page("workflow", _batch()),
        "node of a workflow": _page("workflow", failed.id, "?node=0"),
        "workflow with a map": _page("workflow", mapped.id),
        "workflow of 120 nodes": _page("workflow", many.id),
        "cancel a workflow": _confirmation("workflow", new.id, "cancel"),
        "send an event": _confirmation("workflow", new.id, "send_event"),
    }


def _batch() -> Any:
    """Return the key of a batch with a failed task."""
    failed = {"task_name": HOSTILE, "error_code": HOSTILE, "status": "FAILED", "map_index": 0}
    calls: Any = {"node_id": "calls", "kind": "map", "status": "RUNNING"}
    return row(HOSTILE, calls, *(failed for _ in range(3)), is_batch=True).id


def _pages_of_schedules() -> dict[str, str]:
    def made(**columns: Any) -> Schedule:
        schedule = Schedule(**{"task_name": HOSTILE, "timing": "cron:0 9 * * MON-FRI", **columns})
        schedule.save()
        return schedule

    of_code = made(name=_LONG, source=HOSTILE, kwargs={HOSTILE: HOSTILE}, run_count=3)
    by_hand = made(name=HOSTILE, timezone="Europe/Berlin", jitter=30.0)
    rows = Schedule.objects.filter(pk=by_hand.pk)
    rows.update(timing=f"cron:{HOSTILE}", enabled=False, disabled_by="TIMING", last_error=HOSTILE)
    Task.objects.create(task_name=HOSTILE, schedule_id=of_code.pk, status="FAILED", failed_at=Now(), error_code=HOSTILE)
    return {
        "schedules": _list("schedule"),
        "schedule of the code": _page("schedule", of_code.pk),
        "schedule by hand": _page("schedule", by_hand.pk),
        "new schedule": reverse("admin:horsies_django_schedule_add"),
        "delete a schedule": reverse("admin:horsies_django_schedule_delete", args=[by_hand.pk]),
        "tasks of a schedule": _list("task", f"?schedule_id={of_code.pk}"),
    }


def _task(**columns: Any) -> Task:
    return Task.objects.create(**{"task_name": HOSTILE, **columns})


def _again() -> Task:
    """Return a task that has ended, and that the process knows."""
    columns = {"args": [HOSTILE], "kwargs": {HOSTILE: 1, "password": HOSTILE}}
    return _task(task_name=tasks.echo.module_path, status="COMPLETED", completed_at=Now(), **columns)


def _limit() -> str:
    Limit.objects.create(key=HOSTILE, max_concurrency=2)
    _task(limit_key=HOSTILE)
    _task(limit_key=HOSTILE, deferred=True, blocked=True)
    return HOSTILE


def _worker(name: str) -> str:
    Worker.objects.register(
        name, name, name, 1, threads=8, async_slots=100, memory=80_000_000,
        queues=["default", "emails", HOSTILE], version="1.2.3",
    )  # fmt: skip
    return name


def _list(model: str, query: str = "") -> str:
    return reverse(f"admin:horsies_django_{model}_changelist") + query


def _page(model: str, key: Any, query: str = "") -> str:
    return reverse(f"admin:horsies_django_{model}_change", args=[quote(key)]) + query


def _confirmation(model: str, key: Any, action: str) -> str:
    return reverse(f"admin:horsies_django_{model}_do", args=[quote(key), action])
