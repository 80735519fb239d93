"""A fixture that writes hostile values with plain SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import Error, connection, models, transaction


@pytest.fixture
def spoil(transactional_db: None) -> Callable[..., int]:
    """Set a column of a row to a SQL expression; return 0 if the database refuses it."""

    def run(model: type[models.Model], key: Any, column: str, value: str) -> int:
        assert model._meta.pk is not None
        pk = model._meta.pk.get_db_prep_value(key, connection)
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                where = f"{model._meta.pk.column} = %s"
                cursor.execute(f'UPDATE {model._meta.db_table} SET "{column}" = {value} WHERE {where}', [pk])
                return cursor.rowcount
        except Error:
            return 0

    return run
