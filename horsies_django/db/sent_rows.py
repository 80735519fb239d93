"""Sources of rows for an INSERT of many, in one or two parameters: one for each value would cost more than the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import connections, models

from .statements import Statement


def sent_rows(
    alias: str, ids: Sequence[UUID], kwargs: Sequence[str], texts: Mapping[str, Sequence[str | None]]
) -> Statement:
    """Return a source of rows ``sent (id, kwargs)`` in their order, with more columns of texts by name.

    ``kwargs`` are JSON texts.
    """
    names = ("id", "kwargs", *texts)
    keys = [key.hex for key in ids]
    if connections[alias].vendor == "postgresql":
        # Two parameters cost less than a tenth of one for each value, and one JSON array is parsed twice as fast as an
        # array of JSON texts.
        arrays = ("unnest(%s::uuid[])", "jsonb_array_elements(%s::jsonb)", *("unnest(%s::text[])" for _ in texts))
        sql = f"ROWS FROM ({', '.join(arrays)}) AS sent ({', '.join(names)})"
        return Statement(sql, ("{" + ",".join(keys) + "}", "[" + ",".join(kwargs) + "]", *map(list, texts.values())))
    # SQLite stores JSON as text, so the texts remain as they are.
    columns = ", ".join([f"column{number} AS {name}" for number, name in enumerate(names, 1)])
    row = f"({', '.join(['%s'] * len(names))})"
    sql = f"(SELECT {columns} FROM (VALUES {', '.join([row] * len(ids))})) AS sent"  # noqa: S608  # columns are ours
    return Statement(sql, tuple(chain.from_iterable(zip(keys, kwargs, *texts.values(), strict=True))))


def json_rows(
    alias: str, fields: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Statement], Statement]:
    """Return the columns of these fields by name, and a source ``sent`` of the rows, which is one JSON text.

    On SQLite a value of a JSONField has to be a list or a dict, or a JSON text.
    """
    connection = connections[alias]
    if connection.vendor == "postgresql":
        typed = ", ".join(f'"{name}" {_type(field, connection)}' for name, field in fields.items())
        text = json.dumps([{name: row[name] for name in fields} for row in rows], default=_plain)
        columns = {name: Statement(f'sent."{name}"') for name in fields}
        return columns, Statement(f"jsonb_to_recordset(%s::jsonb) AS sent ({typed})", (text,))

    def stored(name: str, value: Any) -> Any:
        is_json = isinstance(fields[name], models.JSONField)
        return value if is_json else fields[name].get_db_prep_save(value, connection)

    text = json.dumps([{name: stored(name, row[name]) for name in fields} for row in rows])
    columns = {name: Statement(f"json_extract(sent.value, '$.{name}')") for name in fields}
    return columns, Statement("json_each(%s) AS sent", (text,))


def _type(field: Any, connection: Any) -> str:
    type_: str = field.db_type(connection)
    return type_.removesuffix(" CHECK").split(" ")[0] if isinstance(field, models.IntegerField) else type_


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return str(value)
