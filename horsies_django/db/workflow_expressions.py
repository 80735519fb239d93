"""Recursive conditions on the nodes of workflows: everything below some nodes, or above them.

``nodes`` is the model of a node; its ``workflow`` is a foreign key to the model of a workflow.
"""

from __future__ import annotations

from typing import Any, Final, cast

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.db.models.sql.compiler import SQLCompiler

from .expressions import Param


class _InRecursive(models.Func):
    """Whether a node is in the result of a recursive query; a parameter holds the rows that the query starts from."""

    conditional = True
    output_field = models.BooleanField()

    def __init__(self, start: Param, nodes: type[models.Model], *columns: str) -> None:
        super().__init__(*map(F, columns))
        self._start = start
        self._nodes = nodes

    def _compile(self, compiler: SQLCompiler, walk: str, **parts: str) -> tuple[str, tuple[Any, ...]]:
        columns = [compiler.compile(column)[0] for column in self.get_source_expressions()]
        quote = compiler.connection.ops.quote_name
        workflows = cast("models.ForeignKey[Any, Any]", self._nodes._meta.get_field("workflow")).related_model
        tables = {"nodes": quote(self._nodes._meta.db_table), "workflows": quote(workflows._meta.db_table)}
        return f"({', '.join(columns)}) IN ({walk.format(**tables, **parts)})", (self._start,)


class IsAtOrBelow(_InRecursive):
    """Whether a node is at one of these positions, or waits for a node there, through any number of waiting nodes."""

    _SQL: Final = (
        "WITH RECURSIVE below (workflow_id, task_index) AS (SELECT {start} UNION"
        " SELECT node.workflow_id, {index} FROM below JOIN {nodes} node"
        " ON node.workflow_id = below.workflow_id AND node.task_index = below.task_index"
        " AND (node.status = 'PENDING' OR (node.kind = 'map' AND node.status = 'RUNNING')), {dependents}"
        ") SELECT workflow_id, task_index FROM below"
    )

    def __init__(self, positions: Param, nodes: type[models.Model]) -> None:
        super().__init__(positions, nodes, "workflow_id", "task_index")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Take the positions as JSON."""
        return self._compile(
            compiler,
            self._SQL,
            start="(pair ->> 0)::uuid, (pair ->> 1)::integer FROM jsonb_array_elements(%s::jsonb) pair",
            index="later.value::integer",
            dependents="jsonb_array_elements_text(node.dependents) AS later (value)",
        )

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """Take the positions as JSON."""
        return self._compile(
            compiler,
            self._SQL,
            start="json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(%s)",
            index="later.value",
            dependents="json_each(node.dependents) AS later",
        )


class IsAtOrAbove(_InRecursive):
    """Whether a node is one of these, or an ancestor: a node whose subworkflow has one of these, up to the root."""

    _SQL: Final = (
        "WITH RECURSIVE above (id) AS (SELECT {start} UNION"
        " SELECT workflow.parent_id FROM above JOIN {nodes} node ON node.id = above.id"
        " JOIN {workflows} workflow ON workflow.id = node.workflow_id WHERE workflow.parent_id IS NOT NULL)"
        " SELECT id FROM above"
    )

    def __init__(self, keys: Param, nodes: type[models.Model]) -> None:
        super().__init__(keys, nodes, "pk")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Take the keys as an array."""
        return self._compile(compiler, self._SQL, start="unnest(%s::bigint[])")

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """Take the keys as JSON."""
        return self._compile(compiler, self._SQL, start="value FROM json_each(%s)")
