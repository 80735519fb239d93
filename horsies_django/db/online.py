"""Migration operations that add indexes and constraints to tables of millions of rows while workers use them.

``docs/upgrading.md`` explains which locks each step takes. On PostgreSQL an index is built CONCURRENTLY, and a
constraint is added before existing rows are checked. On SQLite, where each change locks the whole database anyway, they
do what Django's operations do. An operation that was interrupted, or that failed, resumes when ``migrate`` runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from django.db import Error, NotSupportedError, OperationalError
from django.db.backends.base.schema import BaseDatabaseSchemaEditor as Editor
from django.db.migrations.operations import AddConstraint, AddIndex
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import BaseConstraint, CheckConstraint, Field, Index, Model, UniqueConstraint
from django.db.transaction import atomic

from .errors import LOCK_NOT_AVAILABLE, sqlstate

__all__ = ["AddConstraintOnline", "AddIndexOnline"]

#: Milliseconds to wait for a lock that, while it is awaited, makes all queries of the table wait too.
EXCLUSIVE_LOCK_TIMEOUT: Final = 5_000

#: Milliseconds to wait for one that lets others read and write: until older transactions end, or for autovacuum.
SHARED_LOCK_TIMEOUT: Final = 600_000

#: Options of a unique constraint that AddConstraintOnline does not have.
_NOT_ONLINE: Final = frozenset({"deferrable", "include", "nulls_distinct", "opclasses"})

#: Whether an index is valid. The build of an invalid one was interrupted, or failed.
_IS_VALID: Final = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"

_IS_VALIDATED: Final = "SELECT convalidated FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s"


class _Online(Operation):
    """Checks that its migration is not atomic, and limits its waits for locks."""

    atomic = False

    def _prepare(self, app_label: str, editor: Editor, state: ProjectState) -> type[Model] | None:
        """Return the model; None if its table is in another database."""
        model = state.apps.get_model(app_label, self.model_name)  # type: ignore[attr-defined]
        if not self.allow_migrate_model(editor.connection.alias, model):
            return None
        if editor.atomic_migration or editor.connection.in_atomic_block:
            raise NotSupportedError(f"{self.describe()}: set atomic = False in the class of its migration.")
        return model

    def _run(self, editor: Editor, sql: Any, timeout: int) -> None:
        """Run a statement on PostgreSQL that may wait so long for a lock, and may then take as long as it takes."""
        with _session_settings(editor, lock_timeout=timeout, statement_timeout=0):
            try:
                editor.execute(sql, params=None)
            except OperationalError as error:
                if sqlstate(error) != LOCK_NOT_AVAILABLE:
                    raise
                raise OperationalError(
                    f"{self.describe()}: waited {timeout / 1_000:g} s for a lock that another transaction holds. "
                    "Run `manage.py migrate` again: it resumes here."
                ) from error

    def _drop_index(self, editor: Editor, name: str) -> None:
        sql = f"DROP INDEX CONCURRENTLY IF EXISTS {editor.quote_name(name)}"
        self._run(editor, sql, SHARED_LOCK_TIMEOUT)

    def _build_index(self, editor: Editor, name: str, sql: str) -> None:
        """Build an index, unless it is there; first drop what an interrupted build has left."""
        found = _value(editor, _IS_VALID, editor.quote_name(name))
        if found is False:
            self._drop_index(editor, name)
        if not found:
            try:
                self._run(editor, sql, SHARED_LOCK_TIMEOUT)
            except Error:
                with suppress(Error):  # the next run drops it, too
                    self._drop_index(editor, name)  # each write of the table would still maintain it
                raise


class AddIndexOnline(_Online, AddIndex):
    """Adds an index. Its migration has ``atomic = False``, and should have no other operation."""

    index: Index

    def database_forwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Build the index, unless it is there."""
        if (model := self._prepare(app_label, schema_editor, to_state)) is None:
            return
        if schema_editor.connection.vendor == "postgresql":
            sql = self.index.create_sql(model, schema_editor, concurrently=True)
            self._build_index(schema_editor, self.index.name, str(sql))
        elif not _exists(schema_editor, model, self.index.name):
            with atomic(schema_editor.connection.alias):
                schema_editor.add_index(model, self.index)

    def database_backwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the index, if it is there."""
        if (model := self._prepare(app_label, schema_editor, from_state)) is None:
            return
        if schema_editor.connection.vendor == "postgresql":
            self._drop_index(schema_editor, self.index.name)
        elif _exists(schema_editor, model, self.index.name):
            with atomic(schema_editor.connection.alias):
                schema_editor.remove_index(model, self.index)

    def describe(self) -> str:
        """Describe it in the output of ``migrate``."""
        return f"Add index {self.index.name} on {self.model_name} online"


class AddConstraintOnline(_Online, AddConstraint):
    """Adds a check or a unique constraint. Its migration has ``atomic = False``, and should have no other operation.

    A row that violates the constraint makes the migration fail. A check constraint then already applies to new rows:
    correct the old ones and migrate again.
    """

    constraint: CheckConstraint | UniqueConstraint

    def __init__(self, model_name: str, constraint: BaseConstraint) -> None:
        if isinstance(constraint, UniqueConstraint):
            if given := _NOT_ONLINE.intersection(constraint.deconstruct()[2]):
                raise TypeError(f"{constraint.name}: AddConstraintOnline allows no {', '.join(sorted(given))}.")
        elif not isinstance(constraint, CheckConstraint):
            raise TypeError(f"{constraint.name}: AddConstraintOnline adds check and unique constraints only.")
        super().__init__(model_name, constraint)

    def database_forwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Add what is missing of the constraint."""
        if (model := self._prepare(app_label, schema_editor, to_state)) is None:
            return
        if schema_editor.connection.vendor != "postgresql":
            if not _exists(schema_editor, model, self.constraint.name):
                with atomic(schema_editor.connection.alias):
                    schema_editor.add_constraint(model, self.constraint)
        elif isinstance(self.constraint, CheckConstraint):
            self._add_check(schema_editor, model)
        else:
            self._add_unique(schema_editor, model, self.constraint)

    def database_backwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the constraint, if it is there."""
        if (model := self._prepare(app_label, schema_editor, to_state)) is None:
            return
        if schema_editor.connection.vendor != "postgresql":
            if _exists(schema_editor, model, self.constraint.name):
                with atomic(schema_editor.connection.alias):
                    schema_editor.remove_constraint(model, self.constraint)
            return
        table, name = schema_editor.quote_name(model._meta.db_table), schema_editor.quote_name(self.constraint.name)
        self._run(schema_editor, f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}", EXCLUSIVE_LOCK_TIMEOUT)
        self._drop_index(schema_editor, self.constraint.name)

    def describe(self) -> str:
        """Describe it in the output of ``migrate``."""
        return f"Add constraint {self.constraint.name} on {self.model_name} online"

    def _add_check(self, editor: Editor, model: type[Model]) -> None:
        """Add it for new rows, which takes milliseconds; then read the others, while the table is in use."""
        table, name = editor.quote_name(model._meta.db_table), editor.quote_name(self.constraint.name)
        is_validated = _value(editor, _IS_VALIDATED, table, self.constraint.name)
        if is_validated is None:
            sql = self.constraint.create_sql(model, editor)
            self._run(editor, f"{sql} NOT VALID", EXCLUSIVE_LOCK_TIMEOUT)
        if not is_validated:
            self._run(editor, f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}", SHARED_LOCK_TIMEOUT)

    def _add_unique(self, editor: Editor, model: type[Model], constraint: UniqueConstraint) -> None:
        """Build its index. Without a condition or expressions, Django knows it as a constraint that uses the index."""
        table, name = editor.quote_name(model._meta.db_table), editor.quote_name(constraint.name)
        if constraint.condition is not None or constraint.expressions:
            sql = str(constraint.create_sql(model, editor))
            start = "CREATE UNIQUE INDEX "
            assert sql.startswith(start), sql
            self._build_index(editor, constraint.name, f"{start}CONCURRENTLY {sql.removeprefix(start)}")
        elif _value(editor, _IS_VALIDATED, table, constraint.name) is None:
            fields = (cast("Field[Any, Any]", model._meta.get_field(field)) for field in constraint.fields)
            columns = ", ".join(editor.quote_name(str(field.column)) for field in fields)
            self._build_index(
                editor, constraint.name, f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {table} ({columns})"
            )
            sql = f"ALTER TABLE {table} ADD CONSTRAINT {name} UNIQUE USING INDEX {name}"
            self._run(editor, sql, EXCLUSIVE_LOCK_TIMEOUT)


@contextmanager
def _session_settings(editor: Editor, **milliseconds: int) -> Iterator[None]:
    """Set these in the session: no CONCURRENTLY runs in a transaction, for which SET LOCAL would do."""
    if editor.collect_sql:
        yield
        return
    with editor.connection.cursor() as cursor:
        before = {}
        for name, value in milliseconds.items():
            cursor.execute("SELECT current_setting(%s), set_config(%s, %s, false)", [name, name, str(value)])
            before[name] = cursor.fetchone()[0]
    try:
        yield
    finally:
        if editor.connection.is_usable():
            with editor.connection.cursor() as cursor:
                for name, value in before.items():
                    cursor.execute("SELECT set_config(%s, %s, false)", [name, value])


def _value(editor: Editor, sql: str, *parameters: str) -> Any:
    """Return the only value that a query finds; None if it finds none."""
    with editor.connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row = cursor.fetchone()
        return row[0] if row else None


def _exists(editor: Editor, model: type[Model], name: str) -> bool:
    """Whether the table has a constraint or an index of this name."""
    with editor.connection.cursor() as cursor:
        return name in editor.connection.introspection.get_constraints(cursor, model._meta.db_table)
