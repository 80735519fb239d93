"""A task that can not be read fails alone: the others run and use no extra attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from horsies_django import OperationalCode, TaskStatus
from horsies_django.core.backends import config_of
from horsies_django.core.compat import InvalidTask
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Limit, Task
from horsies_django.reaper.duties import run_pass
from tests.jobs import limited, tasks

#: In UTC this is the year 10000.
DATE_LINE = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12)))

#: The values as PostgreSQL writes them. A SQLite column of any type can hold most of them.
HOSTILE = {
    "run_after before the year 1": {
        "enqueued_at": "'0001-12-31 23:06:32+00 BC'",
        "run_after": "'0001-12-31 23:06:32+00 BC'",
    },
    "enqueued_at -infinity": {"enqueued_at": "'-infinity'"},
    "good_until past the last year": {"good_until": "'10000-01-01 11:59:59+00'"},
    "good_until infinity": {"good_until": "'infinity'"},
    "claim 2^63-1": {"claim": "9223372036854775807"},
    "attempt 2^31-1": {"attempt": "2147483647"},
    "timeout 1e300": {"timeout": "1e300"},
    "timeout NaN": {"timeout": "'NaN'"},
    "timeout below 0": {"timeout": "-1"},
    "retention past the last year": {"retention": "'178000000 years'"},
    "retention below 0": {"retention": "'-178000000 years'"},
}
#: SQLite compares times as texts: these sort before or after every time.
ON_SQLITE = {
    "run_after before the year 1": {"enqueued_at": "'0000-12-31 23:06:32'", "run_after": "'0000-12-31 23:06:32'"},
    "enqueued_at -infinity": {"enqueued_at": "'-infinity'"},
    "good_until past the last year": {"good_until": "'9999-12-31 23:59:59'"},
    "timeout NaN": {"timeout": "'NaN'"},
    "retention past the last year": {"retention": "9223372036854775807"},
    "retention below 0": {"retention": "-9223372036854775807"},
}


def _columns(case: str) -> dict[str, str]:
    return HOSTILE[case] if connection.vendor == "postgresql" else ON_SQLITE.get(case, HOSTILE[case])


def _assert_failed_alone(hostile, good):
    rows = Task.objects.filter(pk__in=hostile)
    assert set(rows.values_list("status", "error_code")) == {(TaskStatus.FAILED, OperationalCode.WORKER_ROW_UNREADABLE)}
    assert all(row.result["err"]["message"] for row in rows)  # each row is readable again
    states = Task.objects.filter(pk__in=good).values_list("status", "attempt", "retry_count")
    assert set(states) == {(TaskStatus.COMPLETED, 1, 0)}


@pytest.mark.parametrize("case", ["run_after before the year 1", "claim 2^63-1"])
def test_a_hostile_row_fails_and_100_others_complete_at_the_first_attempt(case, write, drain):
    ids = [handle.id for handle in tasks.noop.send_many({} for _ in range(101))]
    hostile = ids.pop(50)
    assert write(Task, hostile, **_columns(case)) == 1

    drain(processes=1)

    _assert_failed_alone([hostile], ids)


def test_hostile_rows_of_each_kind_fail_and_all_others_complete(write, drain):
    ids = [handle.id for handle in tasks.noop.send_many({} for _ in range(4 * len(HOSTILE)))]
    hostile = ids[::4]
    for case, key in zip(HOSTILE, hostile, strict=True):
        assert write(Task, key, **_columns(case)) == 1

    drain(processes=1)

    _assert_failed_alone(hostile, set(ids) - set(hostile))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("case", ["never due", "never expires"])
def test_the_reaper_fails_hostile_rows_that_no_claim_sees(case, write):
    handle = tasks.noop.schedule(3_600)
    infinity = "'infinity'"
    columns = {"enqueued_at": infinity} if case == "never due" else {"good_until": infinity}
    write(Task, handle.id, **columns)

    run_pass(config_of("default"))

    row = Task.objects.get(pk=handle.id)
    assert (row.status, row.error_code) == (TaskStatus.FAILED, OperationalCode.WORKER_ROW_UNREADABLE)
    assert f"{next(iter(columns))} is infinity" in row.result["err"]["message"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no time that is out of its range")
def test_the_reaper_fails_a_run_it_can_not_recover_and_recovers_the_others(write, request):
    hostile, good = (tasks.noop.send().id for _ in range(2))
    with transaction.atomic():
        Task.objects.all().claim("gone", start=2)
    Task.objects.update(started_at=NowPlus(-3_600))
    write(Task, hostile, retention="'-178000000 years'")

    reports = {report.duty: report for report in run_pass(config_of("default"))}

    assert reports["recovered stale runs"].count == 2
    codes = dict(Task.objects.values_list("pk", "error_code"))
    assert codes[good] == OperationalCode.WORKER_CRASHED
    # Without a constraint nothing refuses the row: the retention of failures is in another column.
    is_refused = "older than the constraints" in request.node.name
    assert codes[hostile] == (OperationalCode.WORKER_ROW_UNREADABLE if is_refused else OperationalCode.WORKER_CRASHED)
    assert set(Task.objects.values_list("status", flat=True)) == {TaskStatus.FAILED}


@pytest.mark.django_db
@pytest.mark.parametrize("moment", [datetime(1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), DATE_LINE])
@pytest.mark.parametrize("option", ["run_after", "good_until"])
def test_send_refuses_dates_out_of_range(option, moment):
    with pytest.raises(InvalidTask, match=rf"{option} is .*; allowed: a time from 1900 to 9997 \(UTC\)"):
        tasks.noop.with_options(**{option: moment}).send()


@pytest.mark.django_db
def test_send_refuses_a_timeout_out_of_range():
    with pytest.raises(InvalidTask, match=r"timeout is 1e\+300; allowed: a positive number of seconds, 3153600000"):
        tasks.noop.with_options(timeout=1e300).send()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "columns", [{"run_after": datetime(9999, 12, 31, tzinfo=UTC)}, {"claim": 2**63 - 1}, {"timeout": 1e300}]
)
def test_the_database_refuses_values_that_can_not_be_read(columns):
    key = tasks.noop.send().id

    with pytest.raises(IntegrityError), transaction.atomic():
        Task.objects.filter(pk=key).update(**columns)


def test_the_admin_shows_why_a_hostile_row_failed(write, drain, admin_client):
    key = tasks.noop.send().id
    assert write(Task, key, **_columns("good_until past the last year")) == 1

    drain(processes=1)

    page = admin_client.get(f"/admin/horsies_django/task/{key}/change/")
    assert page.status_code == 200
    assert "good_until is" in page.content.decode()
    assert admin_client.get("/admin/horsies_django/task/").status_code == 200


def test_a_hostile_delayed_row_fails_when_due_and_the_others_run(write, drain):
    hostile, good = tasks.noop.schedule(3_600).id, tasks.noop.schedule(3_600).id
    Task.objects.filter(pk=good).update(enqueued_at=NowPlus(-1))
    assert write(Task, hostile, **_columns("enqueued_at -infinity")) == 1

    drain(processes=1, no_reaper=False)

    _assert_failed_alone([hostile], [good])


def test_a_hostile_blocked_row_does_not_block_others_of_its_limit_key(write, drain):
    hostile, *good = [limited.alone.send().id for _ in range(3)]
    Task.objects.update(blocked=True, deferred=True)
    Limit.objects.update(next_at=NowPlus(-1))
    assert write(Task, hostile, **_columns("timeout 1e300")) == 1

    drain(processes=1)

    _assert_failed_alone([hostile], good)


@pytest.mark.django_db(transaction=True)
def test_the_reaper_releases_the_blocked_tasks_of_other_limit_keys_beside_a_hostile_row(write, request):
    hostile, good = (limited.two_per_user.send(key).id for key in "ab")
    Task.objects.update(blocked=True, deferred=True)
    assert write(Task, hostile, **_columns("timeout 1e300")) == 1

    assert not [report for report in run_pass(config_of("default")) if report.error]

    assert Task.objects.released().filter(pk=good).exists()
    # Without a constraint nothing refuses the row, and SQLite checks only changed columns: a worker will find it.
    is_refused = connection.vendor == "postgresql" and "older than the constraints" in request.node.name
    assert Task.objects.get(pk=hostile).status == (TaskStatus.FAILED if is_refused else TaskStatus.PENDING)


@pytest.mark.django_db(transaction=True)
def test_failing_an_unreadable_row_waits_for_its_lock():
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    handle = tasks.noop.send()
    other = connection.copy()
    try:
        with transaction.atomic(), other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", [handle.id])
            connection.cursor().execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                Task.objects.filter(pk=handle.id).fail_unreadable()
            transaction.set_rollback(True)
    finally:
        other.close()

    assert Task.objects.filter(pk=handle.id).fail_unreadable() == 1
