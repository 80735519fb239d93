"""Inserting nodes: thousands in one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, models

from ... import postgres
from ...inserts import Insert, Piece
from ...models import WorkflowTask

#: Nodes in one statement.
_BATCH: Final = 5_000


def insert(database: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert nodes, given by column and all with the same columns.

    On PostgreSQL they travel as one JSON text with what is not the same for all, for to make an instance of each, and a
    parameter of each value, takes longer than all the rest of a workflow's start.
    """
    if not postgres.can_listen(database):
        WorkflowTask.objects.using(database).bulk_create([WorkflowTask(**row) for row in rows], batch_size=1_000)
        return
    first = rows[0]
    varying = [name for name, value in first.items() if any(row[name] != value for row in rows)]
    fields = {name: WorkflowTask._meta.get_field(name) for name in varying}
    types = {name: _type(field, database) for name, field in fields.items()}
    values = dict(first) | {name: Piece(f'sent."{name}"') for name in varying}
    for start in range(0, len(rows), _BATCH if varying else 1):
        batch = rows[start : start + _BATCH]
        text = json.dumps([{name: row[name] for name in varying} for row in batch], default=_plain)
        source = postgres.records(types, text) if varying else None
        Insert(WorkflowTask, values, database, source=source).run(database)


def _type(field: Any, database: str) -> str:
    type_: str = field.db_type(connections[database])
    return type_.removesuffix(" CHECK").split(" ")[0] if isinstance(field, models.IntegerField) else type_


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return str(value)
