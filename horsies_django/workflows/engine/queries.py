"""Phrases: what the engine says to the database for every node, each written by the ORM once.

As with the exchange of a worker, to build these querysets and compile them takes longer than to carry them out. Who
advances once has them compiled as they are needed; a worker keeps them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connections, models
from django.db.backends.utils import CursorWrapper
from django.db.models import Count, F, TextField, Value
from django.db.models.functions import Cast, Coalesce, Least, Now

from ...core.serialization import dumps
from ...core.transition import Transition, in_sources
from ...core.workflow_status import WorkflowStatus
from ...db import postgres
from ...db.expressions import Blank, FromMap, FromNow, IsAmong, IsOneOf, json_array, json_object, json_pairs, spelled
from ...db.statements import Selection, Statement
from ...models import Workflow, WorkflowTask
from ...models.retention import workflow_kept_until
from .. import lifecycle
from . import enqueue_nodes, node_end
from .nodes import (
    IN_PROGRESS,
    NODE_COLUMNS,
    IS_NEUTRAL,
    OUTCOME_COLUMNS,
    PARENT_COLUMNS,
    IS_WAITING,
    NodeResult,
    IsAtOrAbove,
    IsAtOrBelow,
    Node,
    NodeRows,
    Position,
)

_KEYS: Final = Blank("keys")
_POSITIONS: Final = Blank("places")
_WORKFLOWS: Final = Blank("workflows")
_INDEXES: Final = Blank("indexes")
_TASK_IDS: Final = Blank("task_ids")
_STATUSES: Final = Blank("statuses")
_RESULTS: Final = Blank("results")
_CODES: Final = Blank("codes")
_COUNTS: Final = Blank("counts")
_FAILED: Final = Blank("failed")
_WORKFLOW_COLUMNS: Final = (
    "id",
    "status",
    "on_error",
    "node_count",
    "open_count",
    "failed_index",
    "output_index",
    "parent_id",
    "success_policy",
    "name",
    "error",
)
_COUNTERS: Final = ("open_deps", "ok_deps", "failed_deps", "open_ctx")


class Query(NamedTuple):
    """A SELECT, and what is to stand in its blanks; None if it is asked too seldom to be planned once."""

    select: Selection
    values: Mapping[str, Any] | None


class EngineQueries:
    """The statements of one database, for one thread."""

    def __init__(self, database: str) -> None:
        self.database = database
        self._connection = connections[database]
        self._is_postgres = self._connection.vendor == "postgresql"
        self._enqueue_statements: dict[str, list[Statement]] = {}

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
        return self._compile_select(workflows.locked(skip=True), ["pk"])

    # Ends.

    def task_ends(self, task_ids: Collection[UUID]) -> Query:
        """Ask for the nodes of these tasks whose tasks have ended, each as :data:`~.ending.ENDS`."""
        return Query(self._task_ends, self._keys(task_ids))

    @cached_property
    def _task_ends(self) -> Selection:
        return self._compile_select(node_end.with_ended_tasks(self.nodes.filter(IsAmong(_KEYS, "task_id"))), node_end.TASK_END_COLUMNS)

    def complete(self, keys: Collection[int]) -> None:
        """ENQUEUED, RUNNING → COMPLETED with the results of their tasks (W-35)."""
        self._execute(self._complete, self._keys(keys))

    @cached_property
    def _complete(self) -> Statement:
        rows = self.nodes.filter(lifecycle.COMPLETE_NODE.is_possible, IsAmong(_KEYS))
        return self._inlined(Statement.update(rows, **node_end.completed_values(self.database)))

    def start(self, keys: Collection[int]) -> None:
        """PENDING, READY → RUNNING."""
        self._execute(self._start, self._keys(keys))

    @cached_property
    def _start(self) -> Statement:
        # One that waits for an event, and has a time-out, has been ENQUEUED with the task of that in the same flush.
        rows = self.nodes.filter(in_sources(lifecycle.START_NODE, lifecycle.MARK_RUNNING), IsAmong(_KEYS))
        return self._inlined(Statement.update(rows, status=lifecycle.START_NODE.target, started_at=Now()))

    def end(self, endings: Sequence[NodeResult]) -> None:
        """End nodes as each of these says, without a task (W-36, W-38)."""
        given = {
            **self._keys([one.end.pk for one in endings]),
            _STATUSES.name: self._map({one.end.pk: dumps(one.end.status.value) for one in endings}),
            _RESULTS.name: self._map({one.end.pk: one.result for one in endings}),
            _CODES.name: self._map({one.end.pk: dumps(str(one.code)) for one in endings if one.code is not None}),
        }
        self._execute(self._end, given)

    @cached_property
    def _end(self) -> Statement:
        rows = self.nodes.filter(in_sources(*lifecycle.NODE_ENDS), IsAmong(_KEYS))
        return self._inlined(
            Statement.update(
                rows,
                status=FromMap(_STATUSES, models.TextField()),
                completed_at=Now(),
                result=FromMap(_RESULTS, models.JSONField()),
                error_code=FromMap(_CODES, models.TextField()),
            )
        )

    def end_workflows(self, transition: Transition[WorkflowStatus], texts: Mapping[UUID, str]) -> None:
        """RUNNING → COMPLETED, FAILED, with these results, or errors, as JSON texts."""
        rows = self._workflow_rows.filter(transition.is_possible, open_count=0)
        column = "result" if transition is lifecycle.COMPLETE_WORKFLOW else "error"
        written = {"result": None, "error": None, column: FromMap(_RESULTS, models.JSONField())}
        kept_until = workflow_kept_until(transition.target, self.database)
        statement = Statement.update(
            rows, status=transition.target, completed_at=Now(), **written, kept_until=kept_until
        )
        statement.run(self.database, {**self._keys(texts), _RESULTS.name: self._map(texts)})

    def count_ended(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> None:
        """Count nodes of these workflows as ended; ``failed`` are the first that have failed."""
        self._execute(self._count_ended, self._ended_values(counts, failed))

    def count_ended_returning(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> Query:
        """Do so, and ask for the workflows as they are then, each as a :class:`~.turn.Flow`."""
        if self._is_postgres:
            return Query(self._count_ended_returning, self._ended_values(counts, failed))
        self.count_ended(counts, failed)
        return self.workflows(counts)

    def workflows(self, keys: Collection[UUID]) -> Query:
        """Ask for workflows, each as a :class:`~.turn.Flow`."""
        return Query(self._workflows, self._keys(keys))

    def _ended_values(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> dict[str, Any]:
        return {**self._keys(counts), _COUNTS.name: self._map(counts), _FAILED.name: self._map(failed)}

    @cached_property
    def _count_ended(self) -> Statement:
        closed, failed = FromMap(_COUNTS, models.IntegerField()), FromMap(_FAILED, models.IntegerField())
        first = Least(Coalesce("failed_index", failed), Coalesce(failed, "failed_index"))
        return self._inlined(Statement.update(self._workflow_rows, open_count=F("open_count") - closed, failed_index=first))

    @cached_property
    def _count_ended_returning(self) -> Selection:
        selection, update = Selection(self._workflow_rows, _WORKFLOW_COLUMNS), self._count_ended
        returning = ", ".join(map(self._connection.ops.quote_name, _WORKFLOW_COLUMNS))
        selection.statement = Statement(f"{update.sql} RETURNING {returning}", update.params)
        return selection

    @cached_property
    def _workflows(self) -> Selection:
        return self._compile_select(self._workflow_rows, _WORKFLOW_COLUMNS)

    @property
    def _workflow_rows(self) -> models.QuerySet[Workflow]:
        return Workflow.objects.using(self.database).filter(IsAmong(_KEYS))

    # What waits.

    def waiting_at(self, places: Collection[Position]) -> Query:
        """Ask for the nodes that wait, or run as maps, at these places, each as a :class:`~.nodes.Node`."""
        return Query(self._waiting_at, self._position_values(places))

    @cached_property
    def _waiting_at(self) -> Selection:
        return self._compile_select(self._at_positions.filter(IS_WAITING), NODE_COLUMNS)

    def waiting_below(self, places: Collection[Position]) -> Query:
        """Ask for the same, and for all that wait for these, and for those, and so on."""
        return Query(self._waiting_below, {_POSITIONS.name: json_pairs(places, self._connection)})

    @cached_property
    def _waiting_below(self) -> Selection:
        return self._compile_select(self.nodes.filter(IS_WAITING, IsAtOrBelow(_POSITIONS)), NODE_COLUMNS)

    def _position_values(self, places: Collection[Position]) -> dict[str, Any]:
        workflows = spelled({workflow_id for workflow_id, _ in places}, self._connection)
        return {
            _POSITIONS.name: json_pairs(places, self._connection),
            _WORKFLOWS.name: json_array(workflows, self._connection),
            _INDEXES.name: json_array([str(index) for index in {index for _, index in places}], self._connection),
        }

    @property
    def _at_positions(self) -> NodeRows:
        # The pairs alone would do, but a plan that is made while the table is small goes through all of it then.
        near = self.nodes.filter(IsAmong(_WORKFLOWS, "workflow_id"), IsAmong(_INDEXES, "task_index"))
        return near.filter(IsOneOf("workflow_id", "task_index", _POSITIONS))

    def source_results(self, places: Collection[Position]) -> Query:
        """Ask for the results of the nodes at these places, and whether their own conditions have skipped them."""
        return Query(self._source_results, self._position_values(places))

    @cached_property
    def _source_results(self) -> Selection:
        return self._compile_select(self._at_positions, ("workflow_id", "task_index", Cast("result", TextField()), IS_NEUTRAL))

    def item_results(self, maps: Collection[Position]) -> Query:
        """Ask for the results of the items of these maps, in order."""
        return Query(self._item_results, self._position_values(maps))

    @cached_property
    def _item_results(self) -> Selection:
        return self._compile_select(self._items, ("workflow_id", "map_index", Cast("result", TextField())))

    def item_statuses(self, maps: Collection[Position]) -> Query:
        """Ask for the states of the items of these maps, in order."""
        return Query(self._item_statuses, self._position_values(maps))

    @cached_property
    def _item_statuses(self) -> Selection:
        return self._compile_select(self._items, ("workflow_id", "map_index", "status"))

    @property
    def _items(self) -> NodeRows:
        items = self.nodes.filter(IsAmong(_WORKFLOWS, "workflow_id"), IsOneOf("workflow_id", "map_index", _POSITIONS))
        return items.order_by("workflow_id", "task_index")

    def query(self, rows: models.QuerySet[Any], *columns: Any) -> Query:
        """Ask for columns of some rows."""
        return Query(Selection(rows, columns), None)

    # What a workflow comes to.

    def outcomes(self, places: Collection[Position]) -> Query:
        """Ask how the nodes at these places ended, each as a place and an :class:`~.turn.Outcome`."""
        return Query(self._outcomes, self._position_values(places))

    @cached_property
    def _outcomes(self) -> Selection:
        return self._compile_select(self._at_positions, OUTCOME_COLUMNS)

    def leaves(self, keys: Collection[UUID]) -> Query:
        """Ask the same of the nodes of these workflows for which no other waits."""
        return Query(self._leaves, self._keys(keys))

    @cached_property
    def _leaves(self) -> Selection:
        mine = self.nodes.filter(IsAmong(_KEYS, "workflow_id"), map_index__isnull=True, dependents=[])
        return self._compile_select(mine.order_by("workflow_id", "task_index"), OUTCOME_COLUMNS)

    def status_counts(self, keys: Collection[UUID]) -> Query:
        """Ask how many nodes of these workflows are in which state, items of maps not among them."""
        return Query(self._status_counts, self._keys(keys))

    @cached_property
    def _status_counts(self) -> Selection:
        mine = self.nodes.filter(IsAmong(_KEYS, "workflow_id"), map_index__isnull=True)
        grouped = mine.order_by().values("workflow_id", "status").annotate(count=Count("pk"))
        return self._compile_select(grouped, ("workflow_id", "status", "count"))

    def parents(self, keys: Collection[int]) -> Query:
        """Ask for these nodes, which have subworkflows, and for those above them up to the top, if they are open.

        Each is a :class:`~.turn.Parent`, and its workflow.
        """
        return Query(self._parents, self._keys(keys))

    @cached_property
    def _parents(self) -> Selection:
        workflow = [f"workflow__{name}" for name in _WORKFLOW_COLUMNS]
        return self._compile_select(self.nodes.filter(IsAtOrAbove(_KEYS), status__in=IN_PROGRESS), (*PARENT_COLUMNS, *workflow))

    def store_counters(self, nodes: Sequence[Node]) -> None:
        """Store how many of what they wait for is open and has ended."""
        if nodes:
            maps = {name: self._map({node.pk: getattr(node, name) for node in nodes}) for name in _COUNTERS}
            self._execute(self._store_counters, {**self._keys([node.pk for node in nodes]), **maps})

    @cached_property
    def _store_counters(self) -> Statement:
        counters = {name: FromMap(Blank(name), models.IntegerField()) for name in _COUNTERS}
        return self._inlined(Statement.update(self.nodes.filter(IsAmong(_KEYS)), **counters))

    # What begins.

    def enqueue(self, kind: str | None, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED for the nodes with these keys, with tasks like them but for ``changes``.

        Those are always the same for a ``kind``; without one it is not planned once.
        """
        texts = [f'"{text}"' for text in spelled(task_ids.values(), self._connection)]
        given = {**self._keys(task_ids), _TASK_IDS.name: self._map(dict(zip(task_ids, texts, strict=True)))}
        if kind is None:
            self._insert(changes).run(self.database, given)
            self._update.run(self.database, given)
            return
        if kind not in self._enqueue_statements:
            self._enqueue_statements[kind] = self._enqueue_with(changes)
        for statement in self._enqueue_statements[kind]:
            self._execute(statement, given)

    def _enqueue_with(self, changes: Mapping[str, Any]) -> list[Statement]:
        insertion, update = self._insert(changes), self._update
        if not self._is_postgres:
            return [insertion, update]
        both = Statement(f"WITH made AS ({insertion.sql}) {update.sql}", (*insertion.params, *update.params))
        return [both.settled()]

    def set_due_times(self, keys: Collection[int]) -> None:
        """Set when the waits of these nodes are over, from now, unless they say so."""
        self._execute(self._set_due_times, self._keys(keys))

    @cached_property
    def _set_due_times(self) -> Statement:
        seconds = Coalesce("seconds", "event_timeout", Value(0.0))
        rows = self.nodes.filter(IsAmong(_KEYS), until__isnull=True)
        return self._inlined(Statement.update(rows, until=FromNow(seconds)))

    def insert_tasks(self, changes: Mapping[str, Any], task_ids: Collection[UUID]) -> None:
        """Make the tasks of nodes that were inserted with their ids."""
        nodes = self.nodes.filter(IsAmong(_KEYS, "task_id"))
        enqueue_nodes.insert_statement(nodes, F("task_id"), changes).run(self.database, self._keys(task_ids))

    def _insert(self, changes: Mapping[str, Any]) -> Statement:
        task_ids = FromMap(_TASK_IDS, models.UUIDField())
        return enqueue_nodes.insert_statement(self.nodes.filter(IsAmong(_KEYS)), task_ids, changes)

    @cached_property
    def _update(self) -> Statement:
        task_ids = FromMap(_TASK_IDS, models.UUIDField())
        rows = self.nodes.filter(in_sources(lifecycle.ENQUEUE_NODE, lifecycle.REBUILD), IsAmong(_KEYS))
        return Statement.update(rows, status=lifecycle.ENQUEUE_NODE.target, task_id=task_ids, started_at=Now())

    # Saying it.

    def _keys(self, keys: Iterable[UUID] | Iterable[int]) -> dict[str, Any]:
        return {_KEYS.name: json_array(spelled(keys, self._connection), self._connection)}

    def _map(self, entries: Mapping[Any, Any]) -> str:
        return json_object(spelled(entries, self._connection), map(str, entries.values()))

    def _compile_select(self, rows: models.QuerySet[Any], columns: Iterable[Any]) -> Selection:
        selection = Selection(rows, columns)
        selection.statement = self._inlined(selection.statement)
        return selection

    def _inlined(self, statement: Statement) -> Statement:
        """On PostgreSQL it is planned once, where the connection is a worker's."""
        return statement.settled() if self._is_postgres else statement

    def fetch(self, *questions: Query) -> list[list[Any]]:
        """Return the rows that each of these asks for: of all in one round trip, in a pipeline."""
        with ExitStack() as stack:
            cursors = [stack.enter_context(self._cursor(question)) for question in questions]
            for (selection, given), cursor in zip(questions, cursors, strict=True):
                selection.ask(cursor, given or {})
            return [question.select.fetched(cursor) for question, cursor in zip(questions, cursors, strict=True)]

    def _cursor(self, question: Query) -> CursorWrapper:
        is_kept = question.values is not None
        return postgres.preparing_cursor(self._connection) if is_kept else self._connection.cursor()

    def _select(self, selection: Selection, given: Mapping[str, Any]) -> list[Any]:
        with postgres.preparing_cursor(self._connection) as cursor:
            return selection.read(cursor, selection.statement, given)

    def _execute(self, statement: Statement, given: Mapping[str, Any]) -> None:
        with postgres.preparing_cursor(self._connection) as cursor:
            cursor.execute(statement.sql, statement.filled(given))
