"""Fixtures that write hostile rows: past the constraints, or before the constraints existed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, models, transaction

from horsies_django.models import Limit, Queue, Schedule, Task, Workflow, WorkflowTask

MODELS = (Limit, Queue, Schedule, Task, Workflow, WorkflowTask)


def _constraints() -> Iterator[tuple[type[models.Model], models.CheckConstraint]]:
    for model in MODELS:
        for constraint in model._meta.constraints:
            if isinstance(constraint, models.CheckConstraint) and constraint.name.endswith("in_range"):
                yield model, constraint


def _drop() -> None:
    with connection.cursor() as cursor:
        for model, constraint in _constraints():
            cursor.execute(f"ALTER TABLE {model._meta.db_table} DROP CONSTRAINT IF EXISTS {constraint.name}")


def _add(*, is_valid: bool) -> None:
    for model, constraint in _constraints():
        with connection.schema_editor() as editor:
            sql = str(constraint.create_sql(model, editor))
            editor.execute(sql if is_valid else f"{sql} NOT VALID", params=None)


def _check(*, is_on: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA ignore_check_constraints = {'OFF' if is_on else 'ON'}")


@pytest.fixture
def spoil(transactional_db: None) -> Iterator[Callable[..., int]]:
    """Set a column of a row to a SQL expression without the constraints; return 0 if another rule refuses it."""
    _drop()

    def run(model: type[models.Model], key: Any, column: str, value: str) -> int:
        pk = model._meta.pk.get_db_prep_value(key, connection)
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                where = f"{model._meta.pk.column} = %s"
                cursor.execute(f'UPDATE {model._meta.db_table} SET "{column}" = {value} WHERE {where}', [pk])
                return cursor.rowcount
        except (IntegrityError, DataError):
            return 0

    yield run
    _drop()
    for model in MODELS:
        model._base_manager.all()._raw_delete(connection.alias)
    _add(is_valid=True)


@pytest.fixture(params=["without the constraints", "older than the constraints"])
def write(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Callable[..., int]]:
    """Set columns of a row to SQL expressions despite its constraints, which then apply again or stay off."""
    is_restored = request.param == "older than the constraints"
    is_postgres = connection.vendor == "postgresql"

    def run(model: type[models.Model], key: Any, **columns: str) -> int:
        assignments = ", ".join(f"{name} = {value}" for name, value in columns.items())
        pk = model._meta.pk.get_db_prep_value(key, connection)
        if is_postgres:
            _drop()
        else:
            _check(is_on=False)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {model._meta.db_table} SET {assignments} WHERE {model._meta.pk.column} = %s", [pk])
            count = cursor.rowcount
        if is_restored:
            _add(is_valid=False) if is_postgres else _check(is_on=True)
        return count

    yield run
    if is_postgres:
        _drop()
        for model in MODELS:
            model._base_manager.all()._raw_delete(connection.alias)
        _add(is_valid=True)
    else:
        _check(is_on=True)
