"""A row that nobody can read fails alone: its neighbours run, and none of them pays for it."""

from __future__ import annotations

import pytest
from django.db import connection

from horsies_django import OperationalCode, TaskStatus
from horsies_django.models import Task
from tests.jobs import tasks

#: As PostgreSQL says them, and as SQLite may have them in a column of whatever type.
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
#: SQLite compares times as texts: these stand before, and after, any time.
ON_SQLITE = {
    "run_after before the year 1": {"enqueued_at": "'0000-12-31 23:06:32'", "run_after": "'0000-12-31 23:06:32'"},
    "enqueued_at -infinity": {"enqueued_at": "'-infinity'"},
    "good_until past the last year": {"good_until": "'9999-12-31 23:59:59'"},
    "timeout NaN": {"timeout": "'NaN'"},
    "retention past the last year": {"retention": "9223372036854775807"},
    "retention below 0": {"retention": "-9223372036854775807"},
}


def _columns(which: str) -> dict[str, str]:
    return HOSTILE[which] if connection.vendor == "postgresql" else ON_SQLITE.get(which, HOSTILE[which])


def _assert_failed_alone(hostile, good):
    rows = Task.objects.filter(pk__in=hostile)
    assert set(rows.values_list("status", "error_code")) == {(TaskStatus.FAILED, OperationalCode.WORKER_ROW_UNREADABLE)}
    assert all(row.result["err"]["message"] for row in rows)  # each can be read now
    charged = Task.objects.filter(pk__in=good).values_list("status", "attempt", "retry_count")
    assert set(charged) == {(TaskStatus.COMPLETED, 1, 0)}


@pytest.mark.parametrize("which", ["run_after before the year 1", "claim 2^63-1"])
def test_a_hostile_row_among_100_good_ones_fails_and_these_complete_uncharged(which, write, drain):
    ids = [handle.id for handle in tasks.noop.send_many({} for _ in range(101))]
    hostile = ids.pop(50)
    assert write(Task, hostile, **_columns(which)) == 1

    drain(processes=1)

    _assert_failed_alone([hostile], ids)


def test_hostile_rows_of_each_kind_fail_and_their_neighbours_complete(write, drain):
    ids = [handle.id for handle in tasks.noop.send_many({} for _ in range(4 * len(HOSTILE)))]
    hostile = ids[::4]
    for which, key in zip(HOSTILE, hostile, strict=True):
        assert write(Task, key, **_columns(which)) == 1

    drain(processes=1)

    _assert_failed_alone(hostile, set(ids) - set(hostile))
