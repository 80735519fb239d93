"""Inserts nodes: thousands in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from django.db import connections, models

from ...db import postgres
from ...db.inserts import insert_values
from ...db.statements import Statement
from ...models import WorkflowTask

#: Nodes in one statement.
_BATCH: Final = 5_000


def insert(database: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert nodes, given by column; all have the same columns.

    The columns whose values differ travel as one JSON text. An instance of each row and a parameter for each value
    would take longer than the rest of a workflow's start.
    """
    if (source_of := _SOURCES.get(connections[database].vendor)) is None:
        WorkflowTask.objects.using(database).bulk_create([WorkflowTask(**row) for row in rows], batch_size=1_000)
        return
    first = rows[0]
    varying = [name for name, value in first.items() if any(row[name] != value for row in rows)]
    fields = {name: WorkflowTask._meta.get_field(name) for name in varying}
    for start in range(0, len(rows), _BATCH if varying else 1):
        batch = rows[start : start + _BATCH]
        pieces, source = source_of(fields, batch, database) if varying else ({}, None)
        insert_values(WorkflowTask, {**first, **pieces}, database, source=source).run(database)


_RowSource: TypeAlias = tuple[Mapping[str, Statement], Statement]


def _of_postgres(fields: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], database: str) -> _RowSource:
    types = {name: _type(field, database) for name, field in fields.items()}
    text = json.dumps([{name: row[name] for name in fields} for row in rows], default=_plain)
    return {name: Statement(f'sent."{name}"') for name in fields}, postgres.records(types, text)


def _of_sqlite(fields: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], database: str) -> _RowSource:
    """Read columns from JSON. JSON columns are stored as they arrive; other values are converted for storage before."""
    connection = connections[database]

    def stored(name: str, value: Any) -> Any:
        is_json = isinstance(fields[name], models.JSONField)
        return value if is_json else fields[name].get_db_prep_save(value, connection)

    text = json.dumps([{name: stored(name, row[name]) for name in fields} for row in rows])
    return {name: Statement(f"json_extract(value, '$.{name}')") for name in fields}, Statement("json_each(%s)", (text,))


_SOURCES: Final = {"postgresql": _of_postgres, "sqlite": _of_sqlite}


def _type(field: Any, database: str) -> str:
    type_: str = field.db_type(connections[database])
    return type_.removesuffix(" CHECK").split(" ")[0] if isinstance(field, models.IntegerField) else type_


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return str(value)
