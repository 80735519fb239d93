"""The SQL statements of the engine, each compiled by the ORM once.

To build these querysets and compile them takes longer than to run them. A worker keeps the compiled statements; an
engine that advances once compiles those that it needs.
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
from django.db.models.functions import Cast, Coalesce, Least

from ...core.serialization import dumps
from ...core.transition import Transition, in_sources
from ...core.workflow_status import WorkflowStatus
from ...db import postgres
from ...db.expressions import (
    AnyOf,
    AnyPairOf,
    NowPlus,
    Param,
    ValueByPk,
    encode_pk,
    json_array,
    json_object,
    json_pairs,
)
from ...db.now import Now
from ...db.statements import Statement
from ...db.workflow_expressions import IsAtOrAbove, IsAtOrBelow
from ...models import Workflow, WorkflowTask
from ...models.retention import workflow_kept_until
from .. import lifecycle
from . import enqueue_nodes, node_end
from .nodes import (
    IN_PROGRESS,
    IS_NEUTRAL,
    IS_WAITING,
    NODE_COLUMNS,
    OUTCOME_COLUMNS,
    PARENT_COLUMNS,
    NodeResult,
    NodeRows,
    NodeState,
    Position,
)

_KEYS: Final = Param("keys")
_POSITIONS: Final = Param("positions")
_WORKFLOWS: Final = Param("workflows")
_INDEXES: Final = Param("indexes")
_TASK_IDS: Final = Param("task_ids")
_STATUSES: Final = Param("statuses")
_RESULTS: Final = Param("results")
_CODES: Final = Param("codes")
_COUNTS: Final = Param("counts")
_FAILED: Final = Param("failed")
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
    """A SELECT and the values of its parameters; None for a query that is too rare to be prepared."""

    select: Statement
    values: Mapping[str, Any] | None


class EngineQueries:
    """The statements for one database, used by one thread."""

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
        """Lock those of these trees that no other transaction has locked; return them."""
        return {key for (key,) in self._select(self._lock, self._keys(roots))}

    @cached_property
    def _lock(self) -> Statement:
        workflows = Workflow.objects.using(self.database).filter(AnyOf(_KEYS))
        return self._compile_select(workflows.locked(skip=True), ["pk"])

    # Ends.

    def task_ends(self, task_ids: Collection[UUID]) -> Query:
        """Query the nodes whose tasks have ended, by their tasks, with :data:`~.node_end.TASK_END_COLUMNS`."""
        return Query(self._task_ends, self._keys(task_ids))

    @cached_property
    def _task_ends(self) -> Statement:
        return self._compile_select(
            node_end.with_ended_tasks(self.nodes.filter(AnyOf(_KEYS, "task_id"))), node_end.TASK_END_COLUMNS
        )

    def complete(self, keys: Collection[int]) -> None:
        """ENQUEUED, RUNNING → COMPLETED with the results of their tasks."""
        self._execute(self._complete, self._keys(keys))

    @cached_property
    def _complete(self) -> Statement:
        rows = self.nodes.filter(lifecycle.COMPLETE_NODE.is_possible, AnyOf(_KEYS))
        return self._inlined(Statement.update(rows, **node_end.completed_values(self.database)))

    def start(self, keys: Collection[int]) -> None:
        """PENDING, READY → RUNNING."""
        self._execute(self._start, self._keys(keys))

    @cached_property
    def _start(self) -> Statement:
        # A node that waits for an event with a time-out is ENQUEUED by now, since its time-out has a task.
        rows = self.nodes.filter(in_sources(lifecycle.START_NODE, lifecycle.MARK_RUNNING), AnyOf(_KEYS))
        return self._inlined(Statement.update(rows, status=lifecycle.START_NODE.target, started_at=Now()))

    def end(self, endings: Sequence[NodeResult]) -> None:
        """End nodes with these results, which are not those of tasks."""
        given = {
            **self._keys([one.end.pk for one in endings]),
            _STATUSES.name: self._map({one.end.pk: dumps(one.end.status.value) for one in endings}),
            _RESULTS.name: self._map({one.end.pk: one.result for one in endings}),
            _CODES.name: self._map({one.end.pk: dumps(str(one.code)) for one in endings if one.code is not None}),
        }
        self._execute(self._end, given)

    @cached_property
    def _end(self) -> Statement:
        rows = self.nodes.filter(in_sources(*lifecycle.NODE_ENDS), AnyOf(_KEYS))
        return self._inlined(
            Statement.update(
                rows,
                status=ValueByPk(_STATUSES, models.TextField()),
                completed_at=Now(),
                result=ValueByPk(_RESULTS, models.JSONField()),
                error_code=ValueByPk(_CODES, models.TextField()),
            )
        )

    def end_workflows(self, transition: Transition[WorkflowStatus], texts: Mapping[UUID, str]) -> None:
        """RUNNING → COMPLETED or FAILED, with these results or errors as JSON texts."""
        rows = self._workflow_rows.filter(transition.is_possible, open_count=0)
        column = "result" if transition is lifecycle.COMPLETE_WORKFLOW else "error"
        written = {"result": None, "error": None, column: ValueByPk(_RESULTS, models.JSONField())}
        kept_until = workflow_kept_until(transition.target, self.database)
        statement = Statement.update(
            rows, status=transition.target, completed_at=Now(), **written, kept_until=kept_until
        )
        statement.run(self.database, {**self._keys(texts), _RESULTS.name: self._map(texts)})

    def count_ended(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> None:
        """Count nodes of these workflows as ended; ``failed`` are the indexes of the first failed nodes."""
        self._execute(self._count_ended, self._ended_values(counts, failed))

    def count_ended_returning(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> Query:
        """Count nodes as ended, and query the workflows after that, as rows of :class:`~.context.WorkflowState`."""
        if self._is_postgres:
            return Query(self._count_ended_returning, self._ended_values(counts, failed))
        self.count_ended(counts, failed)
        return self.workflows(counts)

    def workflows(self, keys: Collection[UUID]) -> Query:
        """Query workflows, as rows of :class:`~.context.WorkflowState`."""
        return Query(self._workflows, self._keys(keys))

    def _ended_values(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> dict[str, Any]:
        return {**self._keys(counts), _COUNTS.name: self._map(counts), _FAILED.name: self._map(failed)}

    @cached_property
    def _count_ended(self) -> Statement:
        closed, failed = ValueByPk(_COUNTS, models.IntegerField()), ValueByPk(_FAILED, models.IntegerField())
        first = Least(Coalesce("failed_index", failed), Coalesce(failed, "failed_index"))
        return self._inlined(
            Statement.update(self._workflow_rows, open_count=F("open_count") - closed, failed_index=first)
        )

    @cached_property
    def _count_ended_returning(self) -> Statement:
        selection, update = Statement.select(self._workflow_rows, *_WORKFLOW_COLUMNS), self._count_ended
        returning = ", ".join(map(self._connection.ops.quote_name, _WORKFLOW_COLUMNS))
        return selection._replace(sql=f"{update.sql} RETURNING {returning}", params=update.params)

    @cached_property
    def _workflows(self) -> Statement:
        return self._compile_select(self._workflow_rows, _WORKFLOW_COLUMNS)

    @property
    def _workflow_rows(self) -> models.QuerySet[Workflow]:
        return Workflow.objects.using(self.database).filter(AnyOf(_KEYS))

    # Waiting nodes.

    def waiting_at(self, positions: Collection[Position]) -> Query:
        """Query the waiting nodes and running maps at these positions, as rows of :class:`~.nodes.NodeState`."""
        return Query(self._waiting_at, self._position_values(positions))

    @cached_property
    def _waiting_at(self) -> Statement:
        return self._compile_select(self._at_positions.filter(IS_WAITING), NODE_COLUMNS)

    def waiting_below(self, positions: Collection[Position]) -> Query:
        """Query the same, and all nodes below them."""
        return Query(self._waiting_below, {_POSITIONS.name: json_pairs(positions, self._connection)})

    @cached_property
    def _waiting_below(self) -> Statement:
        return self._compile_select(self.nodes.filter(IS_WAITING, IsAtOrBelow(_POSITIONS, WorkflowTask)), NODE_COLUMNS)

    def _position_values(self, positions: Collection[Position]) -> dict[str, Any]:
        workflows = encode_pk({workflow_id for workflow_id, _ in positions}, self._connection)
        return {
            _POSITIONS.name: json_pairs(positions, self._connection),
            _WORKFLOWS.name: json_array(workflows, self._connection),
            _INDEXES.name: json_array([str(index) for index in {index for _, index in positions}], self._connection),
        }

    @property
    def _at_positions(self) -> NodeRows:
        # The two other filters give the index its columns: a plan made while the table is small would scan it.
        near = self.nodes.filter(AnyOf(_WORKFLOWS, "workflow_id"), AnyOf(_INDEXES, "task_index"))
        return near.filter(AnyPairOf("workflow_id", "task_index", _POSITIONS))

    def source_results(self, positions: Collection[Position]) -> Query:
        """Query the results of the nodes at these positions, and whether their own conditions have skipped them."""
        return Query(self._source_results, self._position_values(positions))

    @cached_property
    def _source_results(self) -> Statement:
        return self._compile_select(
            self._at_positions, ("workflow_id", "task_index", Cast("result", TextField()), IS_NEUTRAL)
        )

    def item_results(self, maps: Collection[Position]) -> Query:
        """Query the results of the items of these maps, in order."""
        return Query(self._item_results, self._position_values(maps))

    @cached_property
    def _item_results(self) -> Statement:
        return self._compile_select(self._items, ("workflow_id", "map_index", Cast("result", TextField())))

    def item_statuses(self, maps: Collection[Position]) -> Query:
        """Query the statuses of the items of these maps, in order."""
        return Query(self._item_statuses, self._position_values(maps))

    @cached_property
    def _item_statuses(self) -> Statement:
        return self._compile_select(self._items, ("workflow_id", "map_index", "status"))

    @property
    def _items(self) -> NodeRows:
        items = self.nodes.filter(AnyOf(_WORKFLOWS, "workflow_id"), AnyPairOf("workflow_id", "map_index", _POSITIONS))
        return items.order_by("workflow_id", "task_index")

    def query(self, rows: models.QuerySet[Any], *columns: Any) -> Query:
        """Return a query for columns of these rows."""
        return Query(Statement.select(rows, *columns), None)

    # The ends of workflows.

    def outcomes(self, positions: Collection[Position]) -> Query:
        """Query the outcomes of the nodes at these positions, each after its position."""
        return Query(self._outcomes, self._position_values(positions))

    @cached_property
    def _outcomes(self) -> Statement:
        return self._compile_select(self._at_positions, OUTCOME_COLUMNS)

    def leaves(self, keys: Collection[UUID]) -> Query:
        """Query the outcomes of the nodes of these workflows that have no dependents."""
        return Query(self._leaves, self._keys(keys))

    @cached_property
    def _leaves(self) -> Statement:
        rows = self.nodes.filter(AnyOf(_KEYS, "workflow_id"), map_index__isnull=True, dependents=[])
        return self._compile_select(rows.order_by("workflow_id", "task_index"), OUTCOME_COLUMNS)

    def status_counts(self, keys: Collection[UUID]) -> Query:
        """Query how many nodes of these workflows have each status, without the items of maps."""
        return Query(self._status_counts, self._keys(keys))

    @cached_property
    def _status_counts(self) -> Statement:
        rows = self.nodes.filter(AnyOf(_KEYS, "workflow_id"), map_index__isnull=True)
        grouped = rows.order_by().values("workflow_id", "status").annotate(count=Count("pk"))
        return self._compile_select(grouped, ("workflow_id", "status", "count"))

    def parents(self, keys: Collection[int]) -> Query:
        """Query these nodes, which have subworkflows, and their ancestors, if they are open.

        Each row is a :class:`~.context.ParentNode`, then its workflow.
        """
        return Query(self._parents, self._keys(keys))

    @cached_property
    def _parents(self) -> Statement:
        workflow = [f"workflow__{name}" for name in _WORKFLOW_COLUMNS]
        return self._compile_select(
            self.nodes.filter(IsAtOrAbove(_KEYS, WorkflowTask), status__in=IN_PROGRESS), (*PARENT_COLUMNS, *workflow)
        )

    def store_counters(self, nodes: Sequence[NodeState]) -> None:
        """Store the counters of waiting nodes."""
        if nodes:
            maps = {name: self._map({node.pk: getattr(node, name) for node in nodes}) for name in _COUNTERS}
            self._execute(self._store_counters, {**self._keys([node.pk for node in nodes]), **maps})

    @cached_property
    def _store_counters(self) -> Statement:
        counters = {name: ValueByPk(Param(name), models.IntegerField()) for name in _COUNTERS}
        return self._inlined(Statement.update(self.nodes.filter(AnyOf(_KEYS)), **counters))

    # Starting nodes.

    def enqueue(self, kind: str | None, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED for the nodes with these keys; insert their tasks.

        A task has the columns of its node, except for ``changes``, which are always the same for a ``kind``. Without a
        kind the statement is not kept.
        """
        texts = [f'"{text}"' for text in encode_pk(task_ids.values(), self._connection)]
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
        return [self._inlined(Statement.compose("WITH made AS ({insert}) {update}", insert=insertion, update=update))]

    def set_due_times(self, keys: Collection[int]) -> None:
        """Set when the waits of these nodes end, counted from now, unless they have a fixed time."""
        self._execute(self._set_due_times, self._keys(keys))

    @cached_property
    def _set_due_times(self) -> Statement:
        seconds = Coalesce("seconds", "event_timeout", Value(0.0))  # a damaged row must not wait for ever
        rows = self.nodes.filter(AnyOf(_KEYS), until__isnull=True)
        return self._inlined(Statement.update(rows, until=NowPlus(seconds)))

    def insert_tasks(self, changes: Mapping[str, Any], task_ids: Collection[UUID]) -> None:
        """Insert the tasks of nodes that were inserted with these task ids."""
        nodes = self.nodes.filter(AnyOf(_KEYS, "task_id"))
        enqueue_nodes.insert_statement(nodes, F("task_id"), changes).run(self.database, self._keys(task_ids))

    def _insert(self, changes: Mapping[str, Any]) -> Statement:
        task_ids = ValueByPk(_TASK_IDS, models.UUIDField())
        return enqueue_nodes.insert_statement(self.nodes.filter(AnyOf(_KEYS)), task_ids, changes)

    @cached_property
    def _update(self) -> Statement:
        task_ids = ValueByPk(_TASK_IDS, models.UUIDField())
        rows = self.nodes.filter(in_sources(lifecycle.ENQUEUE_NODE, lifecycle.REBUILD), AnyOf(_KEYS))
        return Statement.update(rows, status=lifecycle.ENQUEUE_NODE.target, task_id=task_ids, started_at=Now())

    # Running statements.

    def _keys(self, keys: Iterable[UUID] | Iterable[int]) -> dict[str, Any]:
        return {_KEYS.name: json_array(encode_pk(keys, self._connection), self._connection)}

    def _map(self, entries: Mapping[Any, Any]) -> str:
        return json_object(encode_pk(entries, self._connection), map(str, entries.values()))

    def _compile_select(self, rows: models.QuerySet[Any], columns: Iterable[Any]) -> Statement:
        return self._inlined(Statement.select(rows, *columns))

    def _inlined(self, statement: Statement) -> Statement:
        """Inline the constants on PostgreSQL, so that a worker's connection can prepare the statement."""
        return postgres.inline_constants(statement, self.database)

    def fetch(self, *queries: Query) -> list[list[Any]]:
        """Return the rows of each query, in one round trip: the queries form a pipeline."""
        with ExitStack() as stack:
            cursors = [stack.enter_context(self._cursor(query)) for query in queries]
            for (selection, given), cursor in zip(queries, cursors, strict=True):
                selection.execute(cursor, given)
            return [query.select.fetch(cursor) for query, cursor in zip(queries, cursors, strict=True)]

    def _cursor(self, query: Query) -> CursorWrapper:
        is_kept = query.values is not None
        return postgres.preparing_cursor(self._connection) if is_kept else self._connection.cursor()

    def _select(self, selection: Statement, given: Mapping[str, Any]) -> list[Any]:
        with postgres.preparing_cursor(self._connection) as cursor:
            selection.execute(cursor, given)
            return selection.fetch(cursor)

    def _execute(self, statement: Statement, given: Mapping[str, Any]) -> None:
        with postgres.preparing_cursor(self._connection) as cursor:
            statement.execute(cursor, given)
