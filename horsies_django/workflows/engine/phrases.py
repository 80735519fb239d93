"""Phrases: what the engine says to the database for every node, each written by the ORM once.

As with the exchange of a worker, to build these querysets and compile them takes longer than to carry them out. Who
advances once has them compiled as they are needed; a worker keeps them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.db import connections, models
from django.db.models import F, Q
from django.db.models.functions import Now

from ... import postgres
from ...expressions import Blank, FromMap, IsAmong, IsOneOf, json_array, json_object, json_pairs, spelled
from ...models import Workflow, WorkflowTask
from ...models.statements import Selection, Statement
from ..states import NodeKind, WorkflowTaskStatus
from . import ending, enqueuing
from .nodes import BEGUN, COLUMNS, OPEN, Node, NodeRows

_KEYS: Final = Blank("keys")
_PLACES: Final = Blank("places")
_WORKFLOWS: Final = Blank("workflows")
_INDEXES: Final = Blank("indexes")
_TASK_IDS: Final = Blank("task_ids")
_COUNTS: Final = Blank("counts")
_STATE: Final = ("id", "status", "on_error", "open_count")
_COUNTERS: Final = ("open_deps", "ok_deps", "bad_deps", "open_ctx")


class Phrases:
    """The statements of one database, for one thread."""

    def __init__(self, database: str) -> None:
        self.database = database
        self._connection = connections[database]
        self._is_postgres = self._connection.vendor == "postgresql"

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return WorkflowTask.objects.using(self.database).all()

    # Locking.

    def lock(self, roots: Collection[UUID]) -> set[UUID]:
        """Lock those of these trees that nobody else has locked, and return which."""
        return {key for (key,) in self._select(self._lock, self._keys(roots))}

    @cached_property
    def _lock(self) -> Selection:
        workflows = Workflow.objects.using(self.database).filter(IsAmong(_KEYS))
        return self._selection(workflows.locked(skip=True), ["pk"])

    # Ends.

    def ends(self, task_ids: Collection[UUID]) -> list[Any]:
        """Return the nodes of these tasks whose tasks have ended."""
        return self._select(self._ends, self._keys(task_ids))

    @cached_property
    def _ends(self) -> Selection:
        return self._selection(ending.ended(self.nodes.filter(IsAmong(_KEYS, "task_id"))), ending.ENDS)

    def complete(self, keys: Collection[int]) -> None:
        """ENQUEUED, RUNNING → COMPLETED with the results of their tasks (W-35)."""
        self._say(self._complete, self._keys(keys))

    @cached_property
    def _complete(self) -> Statement:
        rows = self.nodes.filter(IsAmong(_KEYS), status__in=BEGUN)
        return self._settled(Statement.update(rows, **ending.completed(self.database)))

    def close(self, counts: Mapping[UUID, int]) -> list[Any]:
        """Count nodes of these workflows as ended; return the id, status, ``on_error`` and open nodes of each."""
        given = {**self._keys(counts), _COUNTS.name: self._map(counts)}
        if not self._is_postgres:
            self._say(self._close, given)
        return self._select(self._states, given)

    @cached_property
    def _close(self) -> Statement:
        closed = FromMap(_COUNTS, models.IntegerField())
        return Statement.update(self._workflows, open_count=F("open_count") - closed)

    @cached_property
    def _states(self) -> Selection:
        selection = self._selection(self._workflows, _STATE)
        if self._is_postgres:
            update = self._close
            returning = ", ".join(map(self._connection.ops.quote_name, _STATE))
            selection.statement = Statement(f"{update.sql} RETURNING {returning}", update.params).settled()
        return selection

    @property
    def _workflows(self) -> models.QuerySet[Workflow]:
        return Workflow.objects.using(self.database).filter(IsAmong(_KEYS))

    # What waits.

    def waiting_at(self, places: Collection[tuple[UUID, int]]) -> list[Node]:
        """Return the nodes that wait, or run as maps, at these places: workflows and indexes."""
        workflows = spelled({workflow_id for workflow_id, _ in places}, self._connection)
        given = {
            _PLACES.name: json_pairs(places, self._connection),
            _WORKFLOWS.name: json_array(workflows, self._connection),
            _INDEXES.name: json_array([str(index) for index in {index for _, index in places}], self._connection),
        }
        return [Node(*row) for row in self._select(self._waiting_at, given)]

    @cached_property
    def _waiting_at(self) -> Selection:
        waits = Q(status=WorkflowTaskStatus.PENDING) | Q(kind=NodeKind.MAP, status=WorkflowTaskStatus.RUNNING)
        # The pairs alone would do, but a plan that is made while the table is small goes through all of it then.
        near = self.nodes.filter(IsAmong(_WORKFLOWS, "workflow_id"), IsAmong(_INDEXES, "task_index"))
        return self._selection(near.filter(waits, IsOneOf("workflow_id", "task_index", _PLACES)), COLUMNS)

    def keep_counters(self, nodes: Sequence[Node]) -> None:
        """Store how many of what they wait for is open and has ended."""
        if nodes:
            maps = {name: self._map({node.pk: getattr(node, name) for node in nodes}) for name in _COUNTERS}
            self._say(self._keep_counters, {**self._keys([node.pk for node in nodes]), **maps})

    @cached_property
    def _keep_counters(self) -> Statement:
        counters = {name: FromMap(Blank(name), models.IntegerField()) for name in _COUNTERS}
        return self._settled(Statement.update(self.nodes.filter(IsAmong(_KEYS)), **counters))

    # What begins.

    def enqueue(self, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED for the nodes with these keys, with tasks like them but for ``changes``."""
        texts = [f'"{text}"' for text in spelled(task_ids.values(), self._connection)]
        given = {**self._keys(task_ids), _TASK_IDS.name: self._map(dict(zip(task_ids, texts, strict=True)))}
        if changes:
            self._insertion(changes).run(self.database, given)
            self._update.run(self.database, given)
        for statement in () if changes else self._enqueue:
            self._say(statement, given)

    @cached_property
    def _enqueue(self) -> list[Statement]:
        insertion, update = self._insertion({}), self._update
        if not self._is_postgres:
            return [insertion, update]
        both = Statement(f"WITH made AS ({insertion.sql}) {update.sql}", (*insertion.params, *update.params))
        return [both.settled()]

    def _insertion(self, changes: Mapping[str, Any]) -> Statement:
        task_ids = FromMap(_TASK_IDS, models.UUIDField())
        return enqueuing.insertion(self.nodes.filter(IsAmong(_KEYS)), task_ids, changes)

    @cached_property
    def _update(self) -> Statement:
        task_ids = FromMap(_TASK_IDS, models.UUIDField())
        rows = self.nodes.filter(IsAmong(_KEYS), status__in=OPEN)
        return Statement.update(rows, status=WorkflowTaskStatus.ENQUEUED, task_id=task_ids, started_at=Now())

    # Saying it.

    def _keys(self, keys: Iterable[UUID] | Iterable[int]) -> dict[str, Any]:
        return {_KEYS.name: json_array(spelled(keys, self._connection), self._connection)}

    def _map(self, entries: Mapping[Any, Any]) -> str:
        return json_object(spelled(entries, self._connection), map(str, entries.values()))

    def _selection(self, rows: models.QuerySet[Any], columns: Iterable[Any]) -> Selection:
        selection = Selection(rows, columns)
        selection.statement = self._settled(selection.statement)
        return selection

    def _settled(self, statement: Statement) -> Statement:
        """On PostgreSQL it is planned once, where the connection is a worker's."""
        return statement.settled() if self._is_postgres else statement

    def _select(self, selection: Selection, given: Mapping[str, Any]) -> list[Any]:
        with postgres.preparing_cursor(self._connection) as cursor:
            return selection.read(cursor, selection.statement, given)

    def _say(self, statement: Statement, given: Mapping[str, Any]) -> None:
        with postgres.preparing_cursor(self._connection) as cursor:
            cursor.execute(statement.sql, statement.filled(given))
