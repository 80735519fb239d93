"""``INSERT … SELECT``: rows made from other rows, inside the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections, models
from django.db.models.constants import OnConflict


def insert_from(model: type[models.Model], rows: models.QuerySet[Any], columns: Mapping[str, Any]) -> None:
    """Insert one row of ``model`` for each of ``rows``, its columns being expressions over that row.

    Model instances would cost as much as all the rest of a task's life. A row that is there already stays as it is.
    """
    connection = connections[rows.db]
    quote = connection.ops.quote_name
    source = rows.order_by().values_list(*columns.values())
    select, params = source.query.get_compiler(connection=connection).as_sql()
    insert = connection.ops.insert_statement(on_conflict=OnConflict.IGNORE)
    suffix = connection.ops.on_conflict_suffix_sql([], OnConflict.IGNORE, [], [])
    names = ", ".join(map(quote, columns))
    with connection.cursor() as cursor:
        cursor.execute(f"{insert} {quote(model._meta.db_table)} ({names}) {select} {suffix}", params)
