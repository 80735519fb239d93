"""Hostile SQL on any column of any table is refused by the database, or costs one row.

Rows of each table are changed, and copied with one column changed, to values that its type allows but Python, or the
meaning of the column, does not. Beside them all other work is done, and pages and commands show every table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from io import StringIO
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.management import CommandError, call_command
from django.db import Error, connection, models, transaction
from django.urls import reverse

from horsies_django import OperationalCode, RetryPolicy, TaskStatus, Workflow, WorkflowStatus, sleep
from horsies_django.db.expressions import NowPlus
from horsies_django.models import (
    Heartbeat,
    Lease,
    Limit,
    Queue,
    Rollup,
    Schedule,
    Task,
    TaskAttempt,
    TaskItem,
    Watermark,
    Worker,
    WorkflowEvent,
    WorkflowTask,
)
from horsies_django.models import Workflow as WorkflowRow
from tests.enqueue.grouping.jobs import mail
from tests.jobs import limited, tasks
from tests.schedules.conftest import make, make_due

IS_POSTGRES = connection.vendor == "postgresql"

#: JSON of unexpected shapes, with a number and a depth that Python can't parse.
_JSON = ("'7'", "'null'", """'"x"'""", "'[[1]]'", """'{"err": 1}'""", """'{"$type": "no"}'""", f"'1{'0' * 5000}'")
_DEEP = "(repeat('[', 3000) || repeat(']', 3000))::jsonb" if IS_POSTGRES else f"'{'[' * 995}{']' * 995}'"
_WHOLE = ("-1", "0", "32767", "2147483647", "9223372036854775807")
_TIMES = ("'infinity'", "'-infinity'", "'0001-12-31 00:00:00+00 BC'", "'10000-01-01'", "'9998-12-31 23:00:00'")
_TEXTS = ("''", r"E'\x01\x1b'" if IS_POSTGRES else "char(1, 27)", "'PENDING'", "'<script>'")
#: SQLite stores these in a column of any type.
_ANY = () if IS_POSTGRES else ("'garbage'", "1.5", "9e999", "x'ff00'")
HOSTILE: dict[str, tuple[str, ...]] = {
    "DateTimeField": (*_TIMES, "'2024-02-30 00:00:00'", "'12:00'", *_ANY),
    "DurationField": ("'178000000 years'", "'-178000000 years'", "'1 day'", *_ANY),
    "FloatField": ("'NaN'", "'-Infinity'", "1e300", "-1", "1e9", *_ANY),
    "JSONField": (*_JSON, _DEEP, *_ANY[:1]),
    "BooleanField": ("true", *_ANY),
    "SmallIntegerField": ("-32768", *_WHOLE, *_ANY),
    "PositiveSmallIntegerField": (*_WHOLE, *_ANY),
    "PositiveIntegerField": (*_WHOLE, *_ANY),
    "PositiveBigIntegerField": (*_WHOLE, *_ANY),
    "UUIDField": ("'00000000-0000-0000-0000-000000000000'", "'0000'", *_ANY),
    "CharField": _TEXTS,
    "TextField": _TEXTS,
}
RETRY = RetryPolicy.fixed([1], auto_retry_for=["*"])

MakeRows = Callable[[int], list[Any]]


def _running(count: int) -> list[Any]:
    ids = [tasks.noop.send().id for _ in range(count)]
    live = {"status": TaskStatus.RUNNING, "claim": 2, "attempt": 2, "claimed_by_worker_id": "another"}
    Task.objects.filter(pk__in=ids).update(**live, claimed_at=NowPlus(-1), started_at=NowPlus(-1))
    return ids


def _stale(count: int) -> list[Any]:
    ids = [tasks.noop.with_options(retry_policy=RETRY).send().id for _ in range(count)]
    gone = {"status": TaskStatus.RUNNING, "claim": 1, "attempt": 1, "claimed_by_worker_id": "gone"}
    Task.objects.filter(pk__in=ids).update(**gone, claimed_at=NowPlus(-4_000), started_at=NowPlus(-4_000))
    return ids


def _attempts(count: int) -> list[Any]:
    times = {"due_at": NowPlus(-21), "started_at": NowPlus(-20), "finished_at": NowPlus(-15)}
    return [TaskAttempt.objects.create(task_id=key, attempt=1, outcome="FAILED", **times).pk for key in _running(count)]


def _heartbeats(count: int) -> list[Any]:
    heartbeat = {"role": "RUNNER", "sender_id": "another", "sent_at": NowPlus(-5), "hostname": "h", "pid": 1}
    return [Heartbeat.objects.create(task_id=key, **heartbeat).pk for key in _running(count)]


def _workflows(count: int) -> list[Any]:
    handles = []
    for number in range(count):
        first = tasks.noop.node()()
        handles.append(
            Workflow(f"hostile {number}", [first, tasks.noop.node(waits_for=[first])(), sleep(3_600)]).start()
        )
    return [handle.id for handle in handles]


def _nodes(index: int) -> MakeRows:
    def make_nodes(count: int) -> list[Any]:
        nodes = WorkflowTask.objects.filter(workflow__in=_workflows(count), task_index=index)
        return list(nodes.values_list("pk", flat=True))

    return make_nodes


def _events(count: int) -> list[Any]:
    return [WorkflowEvent.objects.create(workflow_id=key, name="e").pk for key in _workflows(count)]


def _schedules(count: int) -> list[Any]:
    keys = [make(f"hostile {number}").pk for number in range(count)]
    make_due(5, pk__in=keys)
    return keys


def _workers(count: int) -> list[Any]:
    return [Worker.objects.create(id=f"w{number}", hostname="h", pid=1).pk for number in range(count)]


def _queues(count: int) -> list[Any]:
    keys = []
    for number in range(count):
        tasks.noop.with_options(queue_name=f"q{number}").send()
        keys.append(Queue.objects.create(name=f"q{number}", rate_limit="100/s", tokens=5, refilled_at=NowPlus(-5)).pk)
    return keys


def _limits(count: int) -> list[Any]:
    ids = [limited.rate_limited.send(user=f"hostile {number}").id for number in range(count)]
    return list(Task.objects.filter(pk__in=ids).values_list("limit_key", flat=True))


def _items(count: int) -> list[Any]:
    ids = [mail.send(customer_id=number).id for number in range(count)]
    Task.objects.filter(pk__in=ids).update(enqueued_at=NowPlus(-1))
    return list(TaskItem.objects.filter(task_id__in=ids).values_list("pk", flat=True))


def _rollups(count: int) -> list[Any]:
    kind = {"span": "M", "queue_name": "default", "task_name": "t", "outcome": "FAILED", "count": 1}
    return [Rollup.objects.create(start=NowPlus(-60 * (number + 1)), **kind).pk for number in range(count)]


#: For each kind of row its model, and how to make rows of it.
ROW_KINDS: dict[str, tuple[type[models.Model], MakeRows]] = {
    "due tasks": (Task, lambda count: [tasks.noop.send().id for _ in range(count)]),
    "tasks of a dead worker": (Task, _stale),
    "tasks with limit keys": (
        Task,
        lambda count: [limited.two_per_user.send(user=f"hostile {number}").id for number in range(count)],
    ),
    "attempts": (TaskAttempt, _attempts),
    "heartbeats": (Heartbeat, _heartbeats),
    "grouped calls": (TaskItem, _items),
    "workflows": (WorkflowRow, _workflows),
    "first nodes": (WorkflowTask, _nodes(0)),
    "second nodes": (WorkflowTask, _nodes(1)),
    "events": (WorkflowEvent, _events),
    "schedules": (Schedule, _schedules),
    "workers": (Worker, _workers),
    "queues": (Queue, _queues),
    "limits": (Limit, _limits),
    "leases": (Lease, lambda count: [Lease.objects.create(name=f"reaper {number}").pk for number in range(count)]),
    "watermarks": (
        Watermark,
        lambda count: [Watermark.objects.create(name=f"m {number}").pk for number in range(count)],
    ),
    "roll-ups": (Rollup, _rollups),
}


Change = tuple[str, str]


def _changes(model: type[models.Model]) -> list[Change]:
    """Return each column of a table with each hostile value."""
    fields = model._meta.concrete_fields
    return [(field.column, value) for field in fields for value in HOSTILE.get(field.get_internal_type(), ())]


def _spread(changes: list[Change]) -> list[Change]:
    """Return the changes in a random order in which each column has its first before any has its second."""
    earlier = Counter[str]()

    def turn(change: Change) -> int:
        earlier[change[0]] += 1
        return earlier[change[0]]

    return sorted(Random(2).sample(changes, len(changes)), key=turn)


def _execute(sql: str) -> int:
    """Execute a statement; return how many rows it changed, 0 if the database refuses it."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.rowcount
    except Error:
        return 0


def _where(model: type[models.Model], key: Any) -> str:
    pk = model._meta.pk
    return f"{pk.column} = '{pk.get_db_prep_value(key, connection)}'"


def _update(model: type[models.Model], key: Any, change: Change) -> int:
    column, value = change
    return _execute(f'UPDATE {model._meta.db_table} SET "{column}" = {value} WHERE {_where(model, key)}')


def _insert(model: type[models.Model], key: Any, change: Change) -> int:
    """Insert a copy of a row with another key and one column changed."""
    pk = model._meta.pk
    new_key = uuid4().hex if isinstance(pk, models.UUIDField) else f"copy {uuid4().hex}"[:12]
    columns = {field.column: f'"{field.column}"' for field in model._meta.concrete_fields}
    if isinstance(pk, models.AutoField | models.BigAutoField):
        del columns[pk.column]
    else:
        columns[pk.column] = f"'{new_key}'"
    columns |= {column: value for column, value in [change] if column in columns}
    names, table = ", ".join(f'"{name}"' for name in columns), model._meta.db_table
    selected = f"SELECT {', '.join(columns.values())} FROM {table} WHERE {_where(model, key)}"
    return _execute(f"INSERT INTO {table} ({names}) {selected}")


class Bystanders:
    """Some work of each kind that has to be done beside the hostile rows."""

    def __init__(self) -> None:
        first = tasks.noop.node()()
        self.tasks = [tasks.noop.send().id for _ in range(3)] + [limited.one_per_user.send(user="bystander").id]
        self.workflow = Workflow("bystander", [first, tasks.noop.node(waits_for=[first])()]).start()
        self.schedule = make("bystander").pk
        make_due(5, pk=self.schedule)
        self.stale = _stale(1)

    def assert_done(self) -> None:
        done = Task.objects.filter(status=TaskStatus.COMPLETED)
        assert done.filter(pk__in=self.tasks).count() == len(self.tasks)
        assert self.workflow.status() == WorkflowStatus.COMPLETED
        assert done.filter(schedule_id=self.schedule).count() == 1
        assert (
            TaskAttempt.objects.filter(task_id__in=self.stale, error_code=OperationalCode.WORKER_CRASHED).count() == 1
        )


def _call(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=out)
    return out.getvalue()


def _schedule() -> None:
    with suppress(CommandError):  # a schedule that can't be sent is an error, after the others are sent
        _call("horsies_scheduler", "--once")


def _show_everything(kinds: Collection[str], client: Any) -> None:
    for command in (["horsies_status"], ["horsies_task", "list"], ["horsies_schedule", "list"]):
        assert _call(*command)
    _call("horsies_prune", "--dry-run")
    names = {ROW_KINDS[kind][0]._meta.model_name for kind in kinds if ROW_KINDS[kind][0] in admin.site._registry}
    for address in ("", *(f"horsies_django/{name}/" for name in sorted(names))):
        assert client.get(f"/admin/{address}").status_code == 200, address


def _show_pages(kinds: Collection[str], plain: Collection[Any], client: Any) -> None:
    """Open the page of each row but the ``plain`` ones. The page of a node is that of its workflow."""
    for model in {ROW_KINDS[kind][0] for kind in kinds}:
        shown = WorkflowRow if model is WorkflowTask else model
        if shown not in admin.site._registry:
            continue
        pages = [(key, key, "") for key in model._base_manager.values_list("pk", flat=True)]
        if model is WorkflowTask:
            nodes = model.objects.filter(workflow__in=WorkflowRow.objects.all())
            places = nodes.values_list("pk", "workflow", "task_index")
            pages = [(pk, key, f"?node={index}") for pk, key, index in places]
        for pk, key, query in pages:
            if pk not in plain and key != "":  # no address has an empty key
                address = reverse(f"admin:horsies_django_{shown._meta.model_name}_change", args=[quote(key)])
                assert client.get(address + query).status_code == 200, address + query


def _assert_harmless(kinds: Collection[str], drain: Any, client: Any, plain: Collection[Any] = ()) -> None:
    bystanders = Bystanders()
    _show_everything(kinds, client)
    _schedule()
    drain(processes=1)
    assert "stopped by" not in _call("horsies_reaper", "--once")
    drain(processes=1)

    bystanders.assert_done()
    _show_everything(kinds, client)
    _show_pages(kinds, plain, client)


@pytest.mark.sqlite
@pytest.mark.slow
def test_random_hostile_values_in_each_table_affect_no_other_rows(drain, admin_client):
    random = Random(1)
    count = 0
    for model, make_rows in ROW_KINDS.values():
        changes = random.sample(_changes(model), 4)
        count += sum(
            random.choice((_update, _insert))(model, key, change)
            for key, change in zip(make_rows(len(changes)), changes, strict=True)
        )

    assert count
    _assert_harmless(ROW_KINDS, drain, admin_client)


@pytest.mark.nightly
@pytest.mark.parametrize(("act", "limit"), [(_update, None), (_insert, 100)], ids=["update", "insert"])
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_hostile_values_in_each_column_affect_no_other_rows(kind, act, limit, drain, admin_client):
    model, make_rows = ROW_KINDS[kind]
    changes = _changes(model)
    if limit is not None:  # inserts make twice as many rows: a batch tried row by row must not look like an outage
        changes = _spread(changes)[:limit]
    keys = make_rows(len(changes))
    accepted = {key for key, change in zip(keys, changes, strict=True) if act(model, key, change)}

    _assert_harmless([kind], drain, admin_client, set(keys) - accepted if act is _update else keys)
