"""Check the tasks that have not ended: their names, queues and arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import TextField
from django.db.models.functions import Cast

from ...core.compat import FrameworkTask
from ...enqueue.task import HorsiesTask
from ...models import Task, TaskItem
from ...models.claim.query import ORDER
from ...models.queue_scan import skip_scan
from ...models.transitions import TaskQuerySet
from ..keyset.scopes import DEFERRED, HELD, IndexRange
from .calls import (
    Sample,
    find_task,
    gathers,
    name_problem,
    read_json,
    signature_problem,
    task_parameters,
    value_problems,
)
from .findings import Findings

#: Maximum rows that are read of each part of the tasks: held, deferred, blocked, and those that wait in one queue.
MAX_ROWS: Final = 100_000

#: Maximum rows that are read of all queues together; ``MIN_OF_QUEUE`` of each are read in any case.
MAX_OF_QUEUES: Final = 1_000_000
MIN_OF_QUEUE: Final = 1_000

#: Maximum queues with waiting tasks that are read, of functions and of coroutines.
MAX_QUEUES: Final = 1_000

#: Grouped calls of a group that are examined.
MAX_ITEMS: Final = 20

#: Why tasks in a queue would wait for ever.
NOT_SERVED: Final = "no backend has this queue in its QUEUES"

_COLUMNS: Final = (
    "pk",
    "task_name",
    "queue_name",
    "backend",
    "typed_payload",
    "has_inputs",
    "item_count",
    "workflow_id",
)


class _Row(NamedTuple):
    id: UUID
    task_name: str
    queue_name: str
    backend: str
    is_typed: bool
    has_inputs: bool
    item_count: int | None
    workflow_id: UUID | None


class _Call(NamedTuple):
    id: UUID
    backend: str
    is_typed: bool
    is_group: bool
    is_delayed: bool  # it joins a group once it is due


class _Part(NamedTuple):
    """Rows that one index has in this order, and the maximum that is read of them."""

    label: str
    rows: TaskQuerySet
    limit: int


class TaskCheck:
    """Checks the tasks of a database, or those of one backend in it. ``queues`` are those of all backends; empty: any.

    The tasks of workflows' nodes are read for their queues alone: the check of nodes knows their arguments.
    """

    def __init__(self, database: str, backend: str | None, queues: Collection[str], findings: Findings) -> None:
        self._rows: TaskQuerySet = Task.objects.using(database)
        self._backend = backend
        self._queues = queues
        self._findings = findings
        self._calls: defaultdict[str, Sample[_Call]] = defaultdict(Sample)

    def run(self) -> None:
        """Read the tasks, then examine the arguments of a sample of each name."""
        self._read(_Part("tasks that workers hold", self._in(HELD.ranges[0]), MAX_ROWS))
        self._read(_Part("scheduled tasks", self._in(DEFERRED.ranges[0]), MAX_ROWS))
        blocked = self._rows.blocked().order_by("limit_key", *ORDER)
        self._read(_Part("tasks that wait for a limit", blocked, MAX_ROWS))
        left = MAX_OF_QUEUES
        for is_async in (False, True):
            for name in self._queue_names(is_async):
                waiting = self._rows.waiting(is_async=is_async).filter(queue_name=name).order_by(*ORDER)
                limit = min(MAX_ROWS, max(left, MIN_OF_QUEUE))
                left -= self._read(_Part(f"tasks that wait in queue {name!r}", waiting, limit))
        for name, sample in sorted(self._calls.items()):
            if (task := find_task(name)) is not None:
                self._examine(name, task, sample)

    def _in(self, index_range: IndexRange) -> TaskQuerySet:
        return self._rows.filter(index_range.rows).order_by(*index_range.order)

    def _queue_names(self, is_async: bool) -> Sequence[str]:
        """Return the queues in which tasks wait, by a skip scan."""
        names = skip_scan(self._rows, is_async)
        sql = f"WITH RECURSIVE {names.sql} SELECT name FROM names WHERE name IS NOT NULL LIMIT {MAX_QUEUES + 1}"  # noqa: S608  # compiled by the ORM
        with connections[self._rows.db].cursor() as cursor:
            cursor.execute(sql, names.params)
            found = [name for (name,) in cursor.fetchall()]
        if len(found) > MAX_QUEUES:
            sentence = f"Tasks wait in more than {MAX_QUEUES:,} queues; the others were not read."
            self._findings.record_unread(sentence, "task", "queue")
        return found[:MAX_QUEUES]

    def _read(self, part: _Part) -> int:
        """Read the rows of a part; return how many."""
        number = 0
        rows = part.rows.values_list(*_COLUMNS)[: part.limit + 1]
        for values in rows.iterator():
            if number == part.limit:
                sentence = f"There are more {part.label} than {part.limit:,}; the others were not read."
                self._findings.record_unread(sentence, "task", "queue")
                break
            number += 1
            row = _Row(*values)
            if self._backend in (None, row.backend):  # here: a condition would read any number of others' rows
                self._add(row)
        return number

    def _add(self, row: _Row) -> None:
        self._findings.read["tasks"] += 1
        if self._queues and row.queue_name not in self._queues:
            self._findings.add("queue", row.queue_name, NOT_SERVED, row.id)
        if row.workflow_id is not None:
            return
        if problem := name_problem(row.task_name):
            self._findings.add("task", row.task_name, problem, row.id)
            return
        is_group = row.item_count is not None
        is_delayed = row.has_inputs and not is_group
        self._calls[row.task_name].add(_Call(row.id, row.backend, row.is_typed, is_group, is_delayed))

    def _examine(self, name: str, task: FrameworkTask[..., Any], sample: Sample[_Call]) -> None:
        self._findings.record_examined("task", name, sample.count, len(sample))
        for calls in sample.chunks():
            by_id = {call.id: call for call in calls}
            columns = ("pk", Cast("args", TextField()), Cast("kwargs", TextField()))
            for key, args, kwargs in self._rows.filter(pk__in=by_id).order_by("pk").values_list(*columns):
                for problem in _call_problems(task, by_id[key], args, kwargs):
                    self._findings.add_examined("task", name, problem, key)
            self._examine_items(name, {key: call for key, call in by_id.items() if call.is_group and call.is_typed})

    def _examine_items(self, name: str, groups: dict[UUID, _Call]) -> None:
        """Examine the values of the first calls of groups; their names may be any."""
        items = TaskItem.objects.using(self._rows.db).filter(task__in=groups, position__lt=MAX_ITEMS)
        found: dict[tuple[UUID, str], None] = {}
        for key, text in items.values_list("task_id", Cast("kwargs", TextField())):
            for problem in _item_problems(groups[key].backend, text):
                found[key, problem] = None
        for key, problem in found:
            self._findings.add_examined("task", name, problem, key)


def _call_problems(
    task: FrameworkTask[..., Any], call: _Call, args_text: str | None, kwargs_text: str | None
) -> Iterator[str]:
    try:
        args, kwargs = read_json(args_text, list), read_json(kwargs_text, dict)
    except ValueError as error:
        yield str(error)
        return
    yield from value_problems([*args, *kwargs.values()], call.backend, is_typed=call.is_typed)
    if problem := _argument_problem(task, call, args, kwargs):
        yield problem


def _argument_problem(
    task: FrameworkTask[..., Any], call: _Call, args: Sequence[Any], kwargs: Collection[str]
) -> str | None:
    parameters = task_parameters(task)
    if call.is_group:
        if not parameters.own:
            return "it has no parameter for the list of its grouped calls"
        return signature_problem(parameters, args, [*kwargs, parameters.own[0]])
    if call.is_delayed and not isinstance(task, HorsiesTask):
        return "it is not a task of horsies_django any more, so a call for later can't join its group"
    if call.is_delayed and gathers(task):
        return None  # the arguments of a grouped call may have any names
    return signature_problem(parameters, args, kwargs)


def _item_problems(backend: str, text: str | None) -> Iterator[str]:
    try:
        kwargs = read_json(text, dict)
    except ValueError as error:
        yield f"a grouped call: {error}"
        return
    for problem in value_problems(kwargs, backend, is_typed=True):
        yield f"a grouped call: {problem}"
