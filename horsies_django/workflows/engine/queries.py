"""The SQL statements of the engine, each compiled by the ORM once.

To build these querysets and compile them takes longer than to run them. A worker keeps the compiled statements; an
engine that advances once compiles those that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connections, models
from django.db.models import Count, F, TextField, Value
from django.db.models.functions import Cast, Coalesce, Least

from ...core.lifecycle import Transition, in_sources
from ...core.serialization import dumps
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
from ...models.workflow import WorkflowQuerySet
from .. import lifecycle
from . import enqueue_nodes, node_end
from .rows import (
    IN_PROGRESS,
    IS_NEUTRAL,
    IS_WAITING,
    NODE_COLUMNS,
    OUTCOME_COLUMNS,
    PARENT_COLUMNS,
    WORKFLOW_COLUMNS,
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

_RESULT_TEXT: Final = Cast("result", TextField())
_SOURCE_COLUMNS: Final = ("workflow_id", "task_index", _RESULT_TEXT, IS_NEUTRAL)
_PARENT_COLUMNS: Final = (*PARENT_COLUMNS, *(f"workflow__{name}" for name in WORKFLOW_COLUMNS))
_COUNTERS: Final = ("open_deps", "ok_deps", "failed_deps", "open_ctx")


class Query(NamedTuple):
    """A SELECT and the values of its parameters; None for a query that is too rare to be prepared."""

    select: Statement
    values: Mapping[str, Any] | None


class EngineQueries:
    """The statements for one database, used by one thread.

    A method that returns a query returns None if it is asked for no rows.
    """

    def __init__(self, database: str) -> None:
        self.database = database
        self._connection = connections[database]
        self._is_postgres = self._connection.vendor == "postgresql"
        self._statements: dict[str, Statement] = {}

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return WorkflowTask.objects.using(self.database).all()

    def fetch(self, *queries: Query | None) -> list[list[Any]]:
        """Return the rows of each query, in one round trip: the queries form a pipeline. No rows for None."""
        with ExitStack() as stack:
            cursors: dict[int, Any] = {}
            for place, query in enumerate(queries):
                if query is not None:
                    is_rare = query.values is None
                    cursor = self._connection.cursor() if is_rare else postgres.preparing_cursor(self._connection)
                    cursors[place] = stack.enter_context(cursor)
            for place, cursor in cursors.items():
                if query := queries[place]:
                    query.select.execute(cursor, query.values)
            return [query.select.fetch(cursors[place]) if query else [] for place, query in enumerate(queries)]

    def query(self, rows: models.QuerySet[Any], *columns: Any) -> Query:
        """Return a query for columns of these rows, which is not kept."""
        return Query(Statement.select(rows, *columns), None)

    def lock(self, roots: Collection[UUID]) -> set[UUID]:
        """Lock those of these trees that no other transaction has locked; return them."""
        query = self._select("lock", self._keys(roots), lambda: self._workflows().locked(skip=True), ("pk",))
        return {key for (key,) in self.fetch(query)[0]}

    # Reading workflows and nodes.

    def task_ends(self, task_ids: Collection[UUID]) -> Query | None:
        """Query the nodes whose tasks have ended, by their tasks, with :data:`~.node_end.TASK_END_COLUMNS`."""

        def rows() -> NodeRows:
            return node_end.with_ended_tasks(self.nodes.filter(AnyOf(_KEYS, "task_id")))

        return self._select("task_ends", self._keys(task_ids), rows, node_end.TASK_END_COLUMNS)

    def workflows(self, keys: Collection[UUID]) -> Query | None:
        """Query workflows, as rows of :class:`~.rows.WorkflowState`."""
        return self._select("workflows", self._keys(keys), self._workflows, WORKFLOW_COLUMNS)

    def waiting_at(self, positions: Collection[Position]) -> Query | None:
        """Query the waiting nodes and running maps at these positions, as rows of :class:`~.rows.NodeState`."""

        def rows() -> NodeRows:
            return self._at_positions().filter(IS_WAITING)

        return self._select("waiting_at", self._places(positions), rows, NODE_COLUMNS)

    def waiting_below(self, positions: Collection[Position]) -> Query | None:
        """Query the same, and all nodes below them."""

        def rows() -> NodeRows:
            return self.nodes.filter(IS_WAITING, IsAtOrBelow(_POSITIONS, WorkflowTask))

        return self._select("waiting_below", self._places(positions), rows, NODE_COLUMNS)

    def source_results(self, positions: Collection[Position]) -> Query | None:
        """Query the results of the nodes at these positions, and whether their own conditions have skipped them."""
        return self._select("source_results", self._places(positions), self._at_positions, _SOURCE_COLUMNS)

    def item_results(self, maps: Collection[Position]) -> Query | None:
        """Query the results of the items of these maps, in order."""
        return self._select("item_results", self._places(maps), self._items, ("workflow_id", "map_index", _RESULT_TEXT))

    def item_statuses(self, maps: Collection[Position]) -> Query | None:
        """Query the statuses of the items of these maps, in order."""
        return self._select("item_statuses", self._places(maps), self._items, ("workflow_id", "map_index", "status"))

    def outcomes(self, positions: Collection[Position]) -> Query | None:
        """Query the nodes at these positions, as rows of :class:`~.rows.NodeOutcome`."""
        return self._select("outcomes", self._places(positions), self._at_positions, OUTCOME_COLUMNS)

    def leaves(self, keys: Collection[UUID]) -> Query | None:
        """Query the outcomes of the nodes of these workflows that have no dependents."""

        def rows() -> NodeRows:
            return self._steps().filter(dependents=[]).order_by("workflow_id", "task_index")

        return self._select("leaves", self._keys(keys), rows, OUTCOME_COLUMNS)

    def status_counts(self, keys: Collection[UUID]) -> Query | None:
        """Query how many nodes of these workflows have each status, without the items of maps."""

        def rows() -> models.QuerySet[Any, Any]:
            return self._steps().order_by().values("workflow_id", "status").annotate(count=Count("pk"))

        return self._select("status_counts", self._keys(keys), rows, ("workflow_id", "status", "count"))

    def parents(self, keys: Collection[int]) -> Query | None:
        """Query these nodes, which have subworkflows, and their ancestors, if they are open.

        Each row is a :class:`~.rows.ParentNode`, then its workflow.
        """

        def rows() -> NodeRows:
            return self.nodes.filter(IsAtOrAbove(_KEYS, WorkflowTask), status__in=IN_PROGRESS)

        return self._select("parents", self._keys(keys), rows, _PARENT_COLUMNS)

    def _workflows(self) -> WorkflowQuerySet:
        return Workflow.objects.using(self.database).filter(AnyOf(_KEYS))

    def _at_positions(self) -> NodeRows:
        # The two other filters give the index its columns: a plan made while the table is small would scan it.
        near = self.nodes.filter(AnyOf(_WORKFLOWS, "workflow_id"), AnyOf(_INDEXES, "task_index"))
        return near.filter(AnyPairOf("workflow_id", "task_index", _POSITIONS))

    def _items(self) -> NodeRows:
        items = self.nodes.filter(AnyOf(_WORKFLOWS, "workflow_id"), AnyPairOf("workflow_id", "map_index", _POSITIONS))
        return items.order_by("workflow_id", "task_index")

    def _steps(self) -> NodeRows:
        return self.nodes.filter(AnyOf(_KEYS, "workflow_id"), map_index__isnull=True)

    # Writing workflows.

    def count_ended(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> None:
        """Count nodes of these workflows as ended; ``failed`` are the indexes of the first failed nodes."""
        self._run("count_ended", self._ended_values(counts, failed), self._count_ended)

    def count_ended_returning(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> Query | None:
        """Count nodes as ended, and query the workflows after that, as rows of :class:`~.rows.WorkflowState`."""
        if not counts:
            return None
        if not self._is_postgres:
            self.count_ended(counts, failed)
            return self.workflows(counts)

        def returning() -> Statement:
            select, update = Statement.select(self._workflows(), *WORKFLOW_COLUMNS), self._count_ended()
            columns = ", ".join(map(self._connection.ops.quote_name, WORKFLOW_COLUMNS))
            return select._replace(sql=f"{update.sql} RETURNING {columns}", params=update.params)

        return Query(self._kept("count_ended_returning", returning), self._ended_values(counts, failed))

    def _ended_values(self, counts: Mapping[UUID, int], failed: Mapping[UUID, int]) -> dict[str, Any]:
        return {**self._keys(counts), _COUNTS.name: self._map(counts), _FAILED.name: self._map(failed)}

    def _count_ended(self) -> Statement:
        closed, failed = ValueByPk(_COUNTS, models.IntegerField()), ValueByPk(_FAILED, models.IntegerField())
        first = Least(Coalesce("failed_index", failed), Coalesce(failed, "failed_index"))
        return Statement.update(self._workflows(), open_count=F("open_count") - closed, failed_index=first)

    def end_workflows(self, transition: Transition[WorkflowStatus], texts: Mapping[UUID, str]) -> None:
        """RUNNING → COMPLETED or FAILED, with these results or errors as JSON texts."""
        column = "result" if transition is lifecycle.COMPLETE_WORKFLOW else "error"
        statement = Statement.update(
            self._workflows().filter(transition.is_possible, open_count=0),
            **{"result": None, "error": None, column: ValueByPk(_RESULTS, models.JSONField())},
            status=transition.target,
            completed_at=Now(),
            kept_until=workflow_kept_until(transition.target, self.database),
        )
        statement.run(self.database, {**self._keys(texts), _RESULTS.name: self._map(texts)})

    # Writing nodes.

    def complete(self, keys: Collection[int]) -> None:
        """ENQUEUED, RUNNING → COMPLETED with the results of their tasks."""

        def update() -> Statement:
            return self._update(lifecycle.COMPLETE_NODE, **node_end.completed_values(self.database))

        self._run("complete", self._keys(keys), update)

    def start(self, keys: Collection[int]) -> None:
        """PENDING, READY → RUNNING."""

        def update() -> Statement:
            # A node that waits for an event with a time-out is ENQUEUED by now, since its time-out has a task.
            sources = (lifecycle.START_NODE, lifecycle.MARK_RUNNING)
            return self._update(*sources, status=lifecycle.START_NODE.target, started_at=Now())

        self._run("start", self._keys(keys), update)

    def end(self, endings: Collection[NodeResult]) -> None:
        """End nodes with these results, which are not those of tasks."""

        def update() -> Statement:
            return self._update(
                *lifecycle.NODE_ENDS,
                status=ValueByPk(_STATUSES, models.TextField()),
                completed_at=Now(),
                result=ValueByPk(_RESULTS, models.JSONField()),
                error_code=ValueByPk(_CODES, models.TextField()),
            )

        values = {
            **self._keys([each.end.pk for each in endings]),
            _STATUSES.name: self._map({each.end.pk: dumps(each.end.status.value) for each in endings}),
            _RESULTS.name: self._map({each.end.pk: each.result for each in endings}),
            _CODES.name: self._map({each.end.pk: dumps(str(each.code)) for each in endings if each.code is not None}),
        }
        self._run("end", values, update)

    def store_counters(self, nodes: Collection[NodeState]) -> None:
        """Store the counters of waiting nodes."""

        def update() -> Statement:
            return self._update(**{name: ValueByPk(Param(name), models.IntegerField()) for name in _COUNTERS})

        values = {name: self._map({node.pk: getattr(node, name) for node in nodes}) for name in _COUNTERS}
        self._run("store_counters", self._keys([node.pk for node in nodes]) | values, update)

    def set_due_times(self, keys: Collection[int]) -> None:
        """Set when the waits of these nodes end, counted from now, unless they have a fixed time."""

        def update() -> Statement:
            seconds = Coalesce("seconds", "event_timeout", Value(0.0))  # a damaged row must not wait for ever
            rows = self.nodes.filter(AnyOf(_KEYS), until__isnull=True)
            return Statement.update(rows, until=NowPlus(seconds))

        self._run("set_due_times", self._keys(keys), update)

    def enqueue(self, kind: str | None, task_ids: Mapping[int, UUID], changes: Mapping[str, Any]) -> None:
        """PENDING, READY → ENQUEUED for the nodes with these keys; insert their tasks.

        A task has the columns of its node, except for ``changes``, which are always the same for a ``kind``. Without a
        kind the statement is not kept.
        """
        texts = [f'"{text}"' for text in encode_pk(task_ids.values(), self._connection)]
        values = {**self._keys(task_ids), _TASK_IDS.name: self._map(dict(zip(task_ids, texts, strict=True)))}
        for part, compile_ in self._enqueue_parts(changes).items():
            if kind is None:
                compile_().run(self.database, values)
            else:
                self._run(f"{part} {kind}", values, compile_)

    def _enqueue_parts(self, changes: Mapping[str, Any]) -> Mapping[str, Callable[[], Statement]]:
        """Return the INSERT of tasks and the UPDATE of their nodes, which are one statement on PostgreSQL."""
        task_ids = ValueByPk(_TASK_IDS, models.UUIDField())
        sources = (lifecycle.ENQUEUE_NODE, lifecycle.REBUILD)

        def insert() -> Statement:
            return enqueue_nodes.insert_statement(self.nodes.filter(AnyOf(_KEYS)), task_ids, changes)

        def update() -> Statement:
            return self._update(*sources, status=lifecycle.ENQUEUE_NODE.target, task_id=task_ids, started_at=Now())

        def both() -> Statement:
            return Statement.compose("WITH made AS ({insert}) {update}", insert=insert(), update=update())

        return {"enqueue": both} if self._is_postgres else {"insert": insert, "update": update}

    def insert_tasks(self, changes: Mapping[str, Any], task_ids: Collection[UUID]) -> None:
        """Insert the tasks of nodes that were inserted with these task ids."""
        nodes = self.nodes.filter(AnyOf(_KEYS, "task_id"))
        enqueue_nodes.insert_statement(nodes, F("task_id"), changes).run(self.database, self._keys(task_ids))

    def _update(self, /, *transitions: Transition[Any], **values: Any) -> Statement:
        rows = self.nodes.filter(AnyOf(_KEYS))
        return Statement.update(rows.filter(in_sources(*transitions)) if transitions else rows, **values)

    # Compiling once.

    def _select(
        self,
        name: str,
        values: Mapping[str, Any],
        rows: Callable[[], models.QuerySet[Any, Any]],
        columns: Sequence[Any],
    ) -> Query | None:
        """Return the query of this name; None without values."""
        return Query(self._kept(name, lambda: Statement.select(rows(), *columns)), values) if values else None

    def _run(self, name: str, values: Mapping[str, Any], compile_: Callable[[], Statement]) -> None:
        with postgres.preparing_cursor(self._connection) as cursor:
            self._kept(name, compile_).execute(cursor, values)

    def _kept(self, name: str, compile_: Callable[[], Statement]) -> Statement:
        """Return the statement of this name, which is compiled at its first use.

        On PostgreSQL its constants are inlined, so that a worker's connection can prepare it.
        """
        if (statement := self._statements.get(name)) is None:
            statement = self._statements[name] = postgres.inline_constants(compile_(), self.database)
        return statement

    # Parameters.

    def _keys(self, keys: Collection[UUID] | Collection[int]) -> dict[str, Any]:
        return {_KEYS.name: json_array(encode_pk(keys, self._connection), self._connection)} if keys else {}

    def _places(self, positions: Collection[Position]) -> dict[str, Any]:
        if not positions:
            return {}
        workflows = encode_pk({workflow_id for workflow_id, _ in positions}, self._connection)
        return {
            _POSITIONS.name: json_pairs(positions, self._connection),
            _WORKFLOWS.name: json_array(workflows, self._connection),
            _INDEXES.name: json_array([str(index) for index in {index for _, index in positions}], self._connection),
        }

    def _map(self, entries: Mapping[Any, Any]) -> str:
        return json_object(encode_pk(entries, self._connection), map(str, entries.values()))
