"""Failures with the same exception class, error code and location share an error group."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from horsies_django import TaskStatus, task
from horsies_django.core.compat import task_backends
from horsies_django.models import ErrorGroup, Rollup, Task, TaskAttempt
from horsies_django.ops.keyset.criteria import Criteria
from horsies_django.ops.keyset.scan import KeysetScan
from horsies_django.ops.keyset.scopes import of_error_group
from horsies_django.reaper import rollup
from horsies_django.reaper.duties import run_pass
from horsies_django.reaper.rollup import roll_up
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@task
def parse(text: str) -> object:
    return json.loads(text)


@task(timeout=0.05)
def never_ends() -> None:
    while True:
        pass


@task(max_attempts=2, backoff=60)
def fails_once_more() -> None:
    raise OSError("later")


def roll():
    """Roll up all attempts."""
    TaskAttempt.objects.update(finished_at=F("finished_at") - timedelta(seconds=10))
    for _ in roll_up(task_backends["default"].config):
        pass


def test_the_same_failure_of_two_calls_is_one_group_whatever_its_message(drain):
    tasks.fail.send("one")
    tasks.fail.send("two")
    tasks.returns_error.send("SOLD_OUT")
    parse.send("{")
    drain()
    roll()

    groups = {(group.exception_class, group.error_code, group.location): group for group in ErrorGroup.objects.all()}
    failed = groups["builtins.ValueError", "UNHANDLED_EXCEPTION", "tests.jobs.tasks.fail"]
    assert groups.keys() - {(failed.exception_class, failed.error_code, failed.location)} == {
        ("", "SOLD_OUT", "tests.jobs.tasks.returns_error"),
        # raised in the standard library, called from here
        ("json.decoder.JSONDecodeError", "UNHANDLED_EXCEPTION", "tests.ops.metrics.test_error_groups.parse"),
    }
    of_group = TaskAttempt.objects.filter(fingerprint=failed.fingerprint)
    assert of_group.count() == 2
    times = sorted(of_group.values_list("finished_at", flat=True))
    assert [failed.first_seen_at, failed.last_seen_at] == times
    assert failed.last_attempt_id == max(of_group.values_list("pk", flat=True))
    assert Task.objects.filter(fingerprint=failed.fingerprint, status=TaskStatus.FAILED).count() == 2


def test_roll_ups_count_the_failures_of_each_group(drain):
    for number in range(3):
        tasks.fail.send(str(number))
    parse.send("{")
    tasks.noop.send()
    drain()
    roll()

    for span in "MH":
        rows = Rollup.objects.filter(span=span)
        counts = {}
        for fingerprint, count in rows.exclude(fingerprint="").values_list("fingerprint", "count"):
            counts[fingerprint] = counts.get(fingerprint, 0) + count
        assert sorted(counts.values()) == [1, 3]
        assert rows.get(fingerprint="").task_name == tasks.noop.module_path


def test_a_time_limit_groups_by_the_task_wherever_it_interrupts_it(drain):
    never_ends.send()
    drain()

    attempt = TaskAttempt.objects.get()
    assert (attempt.error_code, attempt.location) == ("TASK_TIMEOUT", "tests.ops.metrics.test_error_groups.never_ends")


def test_a_retrying_task_is_in_the_group_until_it_is_cancelled(drain):
    handle = fails_once_more.send()
    drain()
    row = Task.objects.get()
    assert (row.status, row.fingerprint) == (TaskStatus.PENDING, TaskAttempt.objects.get().fingerprint)

    handle.cancel()

    row.refresh_from_db()
    assert (row.status, row.fingerprint) == (TaskStatus.CANCELLED, None)


def test_a_task_leaves_the_group_when_it_is_retried_or_completes(drain, gate):
    tasks.fail_until.send(str(gate))
    drain()
    row = Task.objects.get()
    assert row.fingerprint
    gate.touch()

    Task.objects.retry()
    row.refresh_from_db()
    assert (row.status, row.fingerprint) == (TaskStatus.PENDING, None)

    Task.objects.update(fingerprint="a" * 12)  # as if it had failed once
    drain()
    row.refresh_from_db()
    assert (row.status, row.fingerprint) == (TaskStatus.COMPLETED, None)


def test_a_task_that_the_previous_release_completed_is_not_in_the_group():
    old = Task.objects.create(task_name="x", status="COMPLETED", completed_at=Now(), fingerprint="a" * 12)
    new = Task.objects.create(
        task_name="x", status="FAILED", failed_at=Now(), fingerprint="a" * 12, error_code="UNHANDLED_EXCEPTION"
    )

    found = KeysetScan(Task.objects.filter(task_name="x"), Criteria(scope=of_error_group("a" * 12))).page().rows

    assert found == [new]
    assert old.fingerprint


@pytest.mark.slow
def test_attempts_above_the_maximum_of_groups_are_counted_without_a_group(drain, monkeypatch):
    monkeypatch.setattr(rollup, "MAX_ERROR_GROUPS", 1)
    tasks.fail.send()
    drain()
    roll()
    (first,) = ErrorGroup.objects.values_list("pk", flat=True)
    tasks.fail.send()
    parse.send("{")
    drain()
    roll()

    assert ErrorGroup.objects.count() == 1
    counted = dict(Rollup.objects.filter(span="H", outcome="FAILED").values_list("fingerprint", "count"))
    assert counted == {first: 2, "": 1}


def test_an_attempt_that_is_deleted_while_it_is_counted_leaves_its_failure_without_a_group(drain):
    tasks.fail.send()
    parse.send("{")
    drain()
    deleted = TaskAttempt.objects.order_by("-pk").first()

    def delete_before_it_is_read(execute, sql, params, many, context):
        if sql.startswith("SELECT") and '"exception_class"' in sql:
            execute(f"DELETE FROM horsies_task_attempts WHERE id = {deleted.pk}", (), False, context)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(delete_before_it_is_read):
        roll()

    (group,) = ErrorGroup.objects.all()
    assert group.pk != deleted.fingerprint
    assert Rollup.objects.get(span="H", fingerprint="", outcome="FAILED").count == 1


def test_attempts_without_an_error_have_no_group(drain):
    tasks.noop.send()
    tasks.fail.send()
    drain()
    roll()

    assert "" not in set(ErrorGroup.objects.values_list("pk", flat=True))
    assert ErrorGroup.objects.count() == 1


def test_a_group_seen_again_keeps_its_first_time(drain):
    tasks.fail.send()
    drain()
    roll()
    (before,) = ErrorGroup.objects.all()
    tasks.fail.send()
    drain()
    roll()

    (after,) = ErrorGroup.objects.all()
    assert after.first_seen_at == before.first_seen_at
    assert after.last_seen_at > before.last_seen_at
    assert after.last_attempt_id > before.last_attempt_id


def test_the_reaper_deletes_a_group_with_its_last_roll_up():
    now = datetime.now(UTC)
    for age in (34.9, 35.1):
        seen = now - timedelta(days=age)
        ErrorGroup.objects.create(
            fingerprint=f"{age}", error_code="X", first_seen_at=seen, last_seen_at=seen, last_attempt_id=1
        )

    run_pass(task_backends["default"].config)

    assert [group.pk for group in ErrorGroup.objects.all()] == ["34.9"]
