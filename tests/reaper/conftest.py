"""Rows as a dead worker leaves them, and rows that the database refuses to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.models import Task
from tests.jobs import tasks

LONG_AGO = timedelta(hours=1)


def abandoned(count: int, status: TaskStatus, policy: RetryPolicy | None = None) -> list[Task]:
    """Make tasks that a worker held when it died, an hour ago."""
    sender = tasks.noop.with_options(retry_policy=policy) if policy else tasks.noop
    handles = sender.send_many({} for _ in range(count))
    with transaction.atomic():
        start = count if status is TaskStatus.RUNNING else 0
        Task.objects.claim("dead", start=start, prefetch=count - start)
    then = timezone.now() - LONG_AGO
    rows = Task.objects.filter(pk__in=[handle.id for handle in handles])
    rows.update(claimed_at=then, **({"started_at": then} if start else {}))
    return list(rows)


def overdue(count: int) -> list[Task]:
    """Make tasks whose ``good_until`` passed while they waited."""
    then = timezone.now() - LONG_AGO
    handles = tasks.noop.with_options(good_until=then).send_many({} for _ in range(count))
    return list(Task.objects.filter(pk__in=[handle.id for handle in handles]))


def past_retention(count: int) -> list[Task]:
    """Make tasks that ended and whose retention is over."""
    handles = tasks.noop.send_many({} for _ in range(count))
    rows = Task.objects.filter(pk__in=[handle.id for handle in handles])
    rows.update(status=TaskStatus.COMPLETED, completed_at=timezone.now(), kept_until=timezone.now() - LONG_AGO)
    return list(rows)


#: By the name of a duty of the reaper, how to make rows that it has to process.
WORK: dict[str, Callable[[int], list[Task]]] = {
    "requeued stale claims": lambda count: abandoned(count, TaskStatus.CLAIMED),
    "recovered stale runs": lambda count: abandoned(count, TaskStatus.RUNNING),
    "expired overdue tasks": overdue,
    "deleted ended tasks": past_retention,
}


@pytest.fixture
def poison() -> Iterator[Callable[..., Any]]:
    """Make the database refuse every change of one row."""
    with _refusing() as refuse:
        yield refuse


@contextmanager
def _refusing() -> Iterator[Callable[..., Any]]:
    names: list[str] = []

    def refuse(row: Task, code: str = "P0001") -> None:
        key = str(row.pk) if connection.vendor == "postgresql" else row.pk.hex
        with connection.cursor() as cursor:
            for when in ("UPDATE", "DELETE"):
                name = f"refuse_{when.lower()}_{len(names)}"
                names.append(name)
                if connection.vendor == "postgresql":
                    cursor.execute(
                        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger AS $$ BEGIN "
                        f"RAISE EXCEPTION 'this row is poison' USING ERRCODE = '{code}'; END $$ LANGUAGE plpgsql"
                    )
                    cursor.execute(
                        f"CREATE TRIGGER {name} BEFORE {when} ON horsies_tasks FOR EACH ROW "
                        f"WHEN (OLD.id = '{key}') EXECUTE FUNCTION {name}()"
                    )
                else:
                    cursor.execute(
                        f"CREATE TRIGGER {name} BEFORE {when} ON horsies_tasks WHEN OLD.id = '{key}' "
                        "BEGIN SELECT RAISE(ABORT, 'this row is poison'); END"
                    )

    try:
        yield refuse
    finally:
        with connection.cursor() as cursor:
            for name in names:
                table = " ON horsies_tasks" if connection.vendor == "postgresql" else ""
                cursor.execute(f"DROP TRIGGER {name}{table}")
                if connection.vendor == "postgresql":
                    cursor.execute(f"DROP FUNCTION {name}()")
