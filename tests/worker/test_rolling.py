"""Rolling deploys: a worker releases a call that it does not know while a worker of another version may know it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now

from horsies_django import RetryPolicy, TaskHandle, TaskStatus
from horsies_django.models import Task, TaskAttempt, Worker, WorkflowTask
from horsies_django.ops.diagnosis import ReasonCode, reasons_of
from horsies_django.worker import code_version
from tests.conftest import wait_until
from tests.core.registry.jobs import always_true, workflow_with_condition
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.lifecycle import jobs

RICH = {
    "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
}
NEWER = "newer"


def add_other_worker(key="another", **columns):
    """Add the row of a live worker of another version, which claims nothing."""
    Worker.objects.create(pk=key, hostname="h", pid=1, **{"code_version": NEWER, **columns})


def unknown(**columns):
    return Task.objects.create(**{"task_name": "shop.tasks.new", **columns})


def state(row):
    row.refresh_from_db()
    return row.status, row.error_code


def make_due(row):
    Task.objects.filter(pk=row.pk).update(enqueued_at=Now(), deferred=False)


def delay_of(row):
    """Return the seconds until the task is due, by the database's clock."""
    (left,) = Task.objects.filter(pk=row.pk).values_list(F("enqueued_at") - Now(), flat=True)
    return left.total_seconds()


def unknown_calls():
    """Return a function that creates the row for each kind of call that an older worker does not know."""
    tag = {"$type": "dataclass", "class": "shop.tasks.Parcel", "value": {}}
    return {
        "the task": unknown,
        "an argument": lambda: unknown(task_name=tasks.add.module_path, kwargs={"a": 1, "nope": 2}),
        "an argument of a coroutine": lambda: unknown(
            task_name=tasks.awrite.module_path, kwargs={"key": "k", "nope": 2}, is_async=True
        ),
        "a dataclass": lambda: unknown(task_name=tasks.noop.module_path, args=[tag], typed_payload=True),
        "a condition": _unknown_condition,
    }


def _unknown_condition():
    handle = workflow_with_condition(always_true).start()
    WorkflowTask.objects.filter(workflow=handle.id).update(run_when="shop.workflows.is_new")
    return Task.objects.get()


@pytest.mark.parametrize("kind", unknown_calls())
def test_a_call_that_another_version_may_know_is_released_without_an_attempt(drain, settings, kind):
    settings.TASKS = RICH
    add_other_worker()
    row = unknown_calls()[kind]()

    drain()

    assert state(row) == (TaskStatus.PENDING, None)
    assert (row.attempt, row.retry_count, row.claimed_by_worker_id, row.started_at) == (0, 0, None, None)
    assert row.unknown_to == {"versions": [code_version.fingerprint()], "times": 1}
    assert not TaskAttempt.objects.exists()


@pytest.mark.parametrize("kind", unknown_calls())
def test_an_unknown_call_fails_at_once_if_all_workers_have_the_same_version(drain, settings, kind):
    settings.TASKS = RICH
    row = unknown_calls()[kind]()

    drain()

    assert state(row)[0] == TaskStatus.FAILED
    assert state(row)[1] in ("WORKER_RESOLUTION_ERROR", "WORKER_SERIALIZATION_ERROR", "ARGUMENT_TYPE_MISMATCH")
    assert (TaskAttempt.objects.get().attempt, row.unknown_to) == (1, None)


SILENT_FOR = 3_600


@pytest.mark.once
@pytest.mark.parametrize(
    "columns",
    [
        {"queues": ["other"]},
        {"excluded_queues": ["default"]},
        {"stop_requested_at": Now()},
        {"quiet_since": Now()},
        {"last_beat_at": Now() - timedelta(seconds=SILENT_FOR)},
        {"code_version": code_version.fingerprint},
    ],
    ids=["other queues", "queue excluded", "stopping", "quiet", "dead", "the same version"],
)
def test_a_worker_that_can_not_claim_the_task_does_not_count_as_another_version(drain, columns):
    add_other_worker(**{name: value() if callable(value) else value for name, value in columns.items()})
    row = unknown()

    drain()

    assert state(row) == (TaskStatus.FAILED, "WORKER_RESOLUTION_ERROR")


@pytest.mark.once
def test_a_worker_that_stands_still_for_now_counts_as_another_version(drain):
    add_other_worker(stalled_since=Now())
    row = unknown()

    drain()

    assert state(row) == (TaskStatus.PENDING, None)


@pytest.mark.slow
@pytest.mark.once
def test_the_delay_of_an_unknown_call_doubles_up_to_a_minute(drain):
    add_other_worker()
    row, delays = unknown(), []

    for _ in range(8):
        drain()
        delays.append(delay_of(row))
        make_due(row)

    for delay, longest in zip(delays, [1, 2, 4, 8, 16, 32, 60, 60], strict=True):
        assert longest / 2 - 5 < delay <= longest
    row.refresh_from_db()
    assert row.unknown_to["times"] == 8


@pytest.mark.once
def test_an_unknown_call_fails_once_each_live_version_has_released_it(drain, settings):
    add_other_worker()
    row = unknown()
    drain()
    make_due(row)

    backend = settings.TASKS["default"]
    settings.TASKS = {"default": backend | {"OPTIONS": backend["OPTIONS"] | {"version": NEWER}}}
    drain()

    assert state(row) == (TaskStatus.FAILED, "WORKER_RESOLUTION_ERROR")
    assert row.attempts.get().attempt == 1


@pytest.mark.once
def test_an_unknown_call_fails_after_max_returns(drain):
    add_other_worker()
    row = unknown(unknown_to={"versions": ["older"], "times": code_version.MAX_RETURNS})

    drain()

    assert state(row) == (TaskStatus.FAILED, "WORKER_RESOLUTION_ERROR")


DAMAGED = [5, [], {}, {"versions": 5, "times": "x"}, {"versions": [1], "times": -3}]


@pytest.mark.once
@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_a_damaged_unknown_to_column_is_reset(drain, damage):
    add_other_worker()
    row = unknown(unknown_to=damage)

    drain()

    assert state(row) == (TaskStatus.PENDING, None)
    assert row.unknown_to == {"versions": [code_version.fingerprint()], "times": 1}


@pytest.mark.once
def test_a_type_error_raised_by_a_body_does_not_count_as_an_unknown_call(drain):
    add_other_worker()
    row = Task.objects.create(task_name=tasks.add.module_path, args=["1", 2])

    drain()

    assert state(row) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION")


@pytest.mark.once
def test_the_admin_shows_which_version_does_not_know_the_call(drain, admin_client):
    add_other_worker()
    row = unknown()
    drain()
    row.refresh_from_db()

    (reason,) = reasons_of(row)

    assert (reason.code, reason.when) == (ReasonCode.OTHER_VERSION, row.enqueued_at)
    assert code_version.fingerprint() in reason.words
    page = admin_client.get(f"/admin/horsies_django/task/{row.pk}/change/").content.decode()
    assert "is waiting for a worker with another version of the code" in page


@pytest.mark.once
@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_the_admin_ignores_a_damaged_unknown_to_column(admin_client, damage):
    row = unknown(unknown_to=damage)

    response = admin_client.get(f"/admin/horsies_django/task/{row.pk}/change/")

    assert response.status_code == 200
    assert "another version of the code" not in response.content.decode()


@pytest.mark.once
def test_running_a_task_clears_unknown_to(drain):
    add_other_worker()
    patient = RetryPolicy.fixed([60], auto_retry_for=["*"])
    handle = tasks.fail.with_options(retry_policy=patient).send()
    Task.objects.update(unknown_to={"versions": ["older"], "times": 3})

    drain()

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.retry_count, row.unknown_to) == (TaskStatus.PENDING, 1, None)


# The fingerprint.


@pytest.mark.once
def test_the_fingerprint_changes_only_with_task_names_and_parameters(monkeypatch):
    from horsies_django.core.registry import registry

    def of(**changes):
        with monkeypatch.context() as patch:
            for name, found in changes.items():
                patch.setitem(registry.tasks, name, found)
            return code_version.fingerprint.__wrapped__()

    before = of()
    assert of() == before == code_version.fingerprint()
    assert of(**{tasks.add.module_path: tasks.add.using(priority=7)}) == before
    changed = [of(**{"shop.new": tasks.add}), of(**{tasks.add.module_path: tasks.noop})]
    assert len({before, *changed}) == 3


@pytest.mark.once
def test_the_fingerprint_ignores_tasks_that_are_registered_late(monkeypatch):
    from horsies_django.core.registry import registry

    before = code_version.fingerprint.__wrapped__()
    monkeypatch.setitem(registry.tasks, "shop.late", tasks.add)
    monkeypatch.setattr(registry, "late", registry.late | {"shop.late"})

    assert code_version.fingerprint.__wrapped__() == before


# Real processes.


@pytest.mark.slow
def test_a_newer_worker_runs_a_call_that_an_older_one_has_released(worker, tmp_path):
    """The only slot of the newer worker is taken while the older worker claims a call that it does not know."""
    gate = tmp_path / "gate"
    older = worker("--threads", "1", "--processes", "1", TEST_MODULES="tests.enqueue.jobs")
    worker("--threads", "1", "--processes", "1", TEST_MODULES="tests.enqueue.jobs,tests.worker.lifecycle.jobs")
    assert len(set(Worker.objects.values_list("code_version", flat=True))) == 2
    first = jobs.hold_again.send("first", str(gate))
    wait_until(lambda: Entry.objects.filter(key="first").exists(), 60, "the begin of the first call")

    second = jobs.hold_again.send("second", str(gate))
    wait_until(lambda: Task.objects.get(pk=second.id).unknown_to is not None, 60, "the release by the older worker")
    older.stop()  # otherwise it may claim the call repeatedly
    gate.touch()

    for handle in (first, second):
        assert TaskHandle(handle.id).get(timeout=150).is_ok()
        assert Task.objects.get(pk=handle.id).attempt == 1
