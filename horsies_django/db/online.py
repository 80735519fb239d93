"""Migration operations that add indexes and constraints to tables of millions of rows while workers use them.

``docs/upgrading.md`` explains which locks each step takes. On PostgreSQL an index is built CONCURRENTLY, and a
constraint is added before existing rows are checked. On SQLite, where each change locks the whole database anyway, they
do what Django's operations do. An operation that was interrupted, or that failed, resumes when ``migrate`` runs again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from django.db import Error, NotSupportedError, OperationalError
from django.db.backends.base.schema import BaseDatabaseSchemaEditor as Editor
from django.db.migrations.operations import AddConstraint, AddField, AddIndex
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import BaseConstraint, CheckConstraint, Field, Index, Model, UniqueConstraint
from django.db.transaction import atomic

from .errors import LOCK_NOT_AVAILABLE, sqlstate

__all__ = ["AddConstraintOnline", "AddIndexOnline"]

#: Milliseconds to wait for ACCESS EXCLUSIVE. Meanwhile every later query of the table waits behind it.
EXCLUSIVE_LOCK_TIMEOUT: Final = 5_000

#: Milliseconds to wait for SHARE UPDATE EXCLUSIVE and for older transactions to end. Others read and write meanwhile.
SHARED_LOCK_TIMEOUT: Final = 600_000

#: Options of a unique constraint that AddConstraintOnline does not have.
_NOT_ONLINE: Final = frozenset({"deferrable", "include", "nulls_distinct", "opclasses"})

#: A table's index. The build of an invalid one was interrupted, or failed.
_INDEX: Final = (
    "FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = to_regclass(%s) AND relname = %s::name"
)
_INDEX_IS_VALID: Final = f"SELECT indisvalid {_INDEX}"
_INDEX_NAME: Final = f"SELECT indexrelid::regclass::text {_INDEX}"

_IS_VALIDATED: Final = "SELECT convalidated FROM pg_constraint WHERE conrelid = to_regclass(%s) AND conname = %s::name"

#: The key of the advisory lock of an operation, from its table and name.
_LOCK_KEY: Final = "hashtextextended(%s, %s::regclass::oid::bigint)"


class _Online(Operation, ABC):
    """Adds something that the table lacks, or drops what it has, in a migration that is not atomic."""

    atomic = False
    model_name: str

    @property
    @abstractmethod
    def _name(self) -> str:
        """The name of the index or constraint."""

    @abstractmethod
    def _add(self, editor: Editor, model: type[Model], table: str) -> None:
        """Add the missing parts of the index or constraint, on PostgreSQL."""

    @abstractmethod
    def _drop(self, editor: Editor, table: str) -> None:
        """Drop the index or constraint if it exists, on PostgreSQL."""

    def database_forwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Add the index or constraint, unless it exists."""
        if (model := self._prepare(app_label, schema_editor, to_state)) is None:
            return
        if schema_editor.connection.vendor == "postgresql":
            table = schema_editor.quote_name(model._meta.db_table)
            with self._lock(schema_editor, table):
                self._add(schema_editor, model, table)
        elif schema_editor.collect_sql or not self._exists(schema_editor, model):
            with atomic(schema_editor.connection.alias):
                super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the index or constraint if it exists."""
        if (model := self._prepare(app_label, schema_editor, from_state)) is None:
            return
        if schema_editor.connection.vendor == "postgresql":
            table = schema_editor.quote_name(model._meta.db_table)
            with self._lock(schema_editor, table):
                self._drop(schema_editor, table)
        elif schema_editor.collect_sql or self._exists(schema_editor, model):
            with atomic(schema_editor.connection.alias):
                super().database_backwards(app_label, schema_editor, from_state, to_state)

    def _prepare(self, app_label: str, editor: Editor, state: ProjectState) -> type[Model] | None:
        """Return the model; None if its table is in another database."""
        model = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(editor.connection.alias, model):
            return None
        if editor.atomic_migration or editor.connection.in_atomic_block:
            raise NotSupportedError(f"{self.describe()}: set atomic = False in the class of its migration.")
        return model

    def _exists(self, editor: Editor, model: type[Model]) -> bool:
        """Whether the table has a constraint or an index of this name."""
        with editor.connection.cursor() as cursor:
            return self._name in editor.connection.introspection.get_constraints(cursor, model._meta.db_table)

    @contextmanager
    def _lock(self, editor: Editor, table: str) -> Iterator[None]:
        """Fail if another session runs the operation: CREATE INDEX CONCURRENTLY would wait for a query that waits."""
        if not (editor.collect_sql or _value(editor, f"SELECT pg_try_advisory_lock({_LOCK_KEY})", self._name, table)):
            raise OperationalError(
                f"{self.describe()}: another process applies or reverts it. "
                "When it has finished, run `manage.py migrate` again."
            )
        try:
            yield
        finally:
            if editor.connection.is_usable():
                _value(editor, f"SELECT pg_advisory_unlock({_LOCK_KEY})", self._name, table)

    def _run(self, editor: Editor, sql: str, timeout: int) -> None:
        """Run a statement on PostgreSQL with this lock timeout, in milliseconds, and without a statement timeout."""
        with _session_settings(editor, lock_timeout=timeout, statement_timeout=0, transaction_timeout=0):
            try:
                editor.execute(sql, params=None)
            except OperationalError as error:
                if sqlstate(error) != LOCK_NOT_AVAILABLE:
                    raise
                remains = " Until then an invalid index may remain." if "CONCURRENTLY" in sql else ""
                raise OperationalError(
                    f"{self.describe()}: waited {timeout / 1_000:g} s for a lock that another transaction holds. "
                    f"Run `manage.py migrate` again: it resumes here.{remains}"
                ) from error.__cause__

    def _drop_index(self, editor: Editor, table: str) -> None:
        name = editor.quote_name(self._name) if editor.collect_sql else _value(editor, _INDEX_NAME, table, self._name)
        if name is not None:
            self._run(editor, f"DROP INDEX CONCURRENTLY IF EXISTS {name}", SHARED_LOCK_TIMEOUT)

    def _build_index(self, editor: Editor, table: str, sql: str) -> None:
        """Build the index, unless it is there; first drop what an interrupted build has left."""
        is_valid = _value(editor, _INDEX_IS_VALID, table, self._name)
        if is_valid:
            return
        if is_valid is False:
            self._drop_index(editor, table)
        try:
            self._run(editor, sql, SHARED_LOCK_TIMEOUT)
        except Error as error:
            # Each write of the table would maintain an invalid index. After a lock timeout, DROP would wait as long.
            with suppress(Error):  # the next run drops it, too
                if sqlstate(error) != LOCK_NOT_AVAILABLE and not _value(editor, _INDEX_IS_VALID, table, self._name):
                    self._drop_index(editor, table)
            raise


class AddColumnOnline(AddField):
    """Adds a column that is null, or has a constant default. Its migration is atomic, and should have nothing else.

    PostgreSQL does not write the rows, but locks the table: this fails rather than have other queries wait for long.
    """

    def database_forwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Add the column."""
        _limit_lock(schema_editor)
        super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Editor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the column."""
        _limit_lock(schema_editor)
        super().database_backwards(app_label, schema_editor, from_state, to_state)


def _limit_lock(editor: Editor) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute(f"SET LOCAL lock_timeout = {EXCLUSIVE_LOCK_TIMEOUT}", params=None)


class AddIndexOnline(_Online, AddIndex):
    """Adds an index. Its migration has ``atomic = False``, and should have no other operation."""

    index: Index

    @property
    def _name(self) -> str:
        return self.index.name

    def _add(self, editor: Editor, model: type[Model], table: str) -> None:
        self._build_index(editor, table, str(self.index.create_sql(model, editor, concurrently=True)))

    def _drop(self, editor: Editor, table: str) -> None:
        self._drop_index(editor, table)

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
            if options := _NOT_ONLINE.intersection(constraint.deconstruct()[2]):
                raise TypeError(f"{constraint.name}: AddConstraintOnline allows no {', '.join(sorted(options))}.")
        elif not isinstance(constraint, CheckConstraint):
            raise TypeError(f"{constraint.name}: AddConstraintOnline adds check and unique constraints only.")
        super().__init__(model_name, constraint)

    @property
    def _name(self) -> str:
        return self.constraint.name

    def _add(self, editor: Editor, model: type[Model], table: str) -> None:
        if isinstance(self.constraint, CheckConstraint):
            self._add_check(editor, model, table)
        else:
            self._add_unique(editor, model, table, self.constraint)

    def _drop(self, editor: Editor, table: str) -> None:
        sql = f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {editor.quote_name(self._name)}"
        self._run(editor, sql, EXCLUSIVE_LOCK_TIMEOUT)
        if isinstance(self.constraint, UniqueConstraint):
            self._drop_index(editor, table)

    def describe(self) -> str:
        """Describe it in the output of ``migrate``."""
        return f"Add constraint {self.constraint.name} on {self.model_name} online"

    def _add_check(self, editor: Editor, model: type[Model], table: str) -> None:
        """Add it for new rows, which takes milliseconds; then read the others, while the table is in use."""
        is_validated = _value(editor, _IS_VALIDATED, table, self._name)
        if is_validated is None:
            sql = self.constraint.create_sql(model, editor)
            self._run(editor, f"{sql} NOT VALID", EXCLUSIVE_LOCK_TIMEOUT)
        if not is_validated:
            sql = f"ALTER TABLE {table} VALIDATE CONSTRAINT {editor.quote_name(self._name)}"
            self._run(editor, sql, SHARED_LOCK_TIMEOUT)

    def _add_unique(self, editor: Editor, model: type[Model], table: str, constraint: UniqueConstraint) -> None:
        """Build its index. Without a condition or expressions, Django knows it as a constraint that uses the index."""
        create = "CREATE UNIQUE INDEX CONCURRENTLY"
        if constraint.condition is not None or constraint.expressions:
            definition = str(constraint.create_sql(model, editor)).partition(" INDEX ")[2]
            self._build_index(editor, table, f"{create} {definition}")
        elif _value(editor, _IS_VALIDATED, table, self._name) is None:
            name = editor.quote_name(self._name)
            fields = (cast("Field[Any, Any]", model._meta.get_field(field)) for field in constraint.fields)
            columns = ", ".join(editor.quote_name(str(field.column)) for field in fields)
            self._build_index(editor, table, f"{create} {name} ON {table} ({columns})")
            sql = f"ALTER TABLE {table} ADD CONSTRAINT {name} UNIQUE USING INDEX {name}"
            self._run(editor, sql, EXCLUSIVE_LOCK_TIMEOUT)


@contextmanager
def _session_settings(editor: Editor, **milliseconds: int) -> Iterator[None]:
    """Set these for the session during the block: SET LOCAL needs a transaction, in which CONCURRENTLY cannot run.

    Settings that the server does not have are left out.
    """
    with editor.connection.cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(milliseconds)])
        before = dict(cursor.fetchall())
    for name in before:
        editor.execute(f"SET {name} = {milliseconds[name]}", params=None)
    try:
        yield
    finally:
        if editor.connection.is_usable():
            for name, value in before.items():
                editor.execute(f"RESET {name}" if editor.collect_sql else f"SET {name} = {value}", params=None)


def _value(editor: Editor, sql: str, *parameters: str) -> Any:
    """Return the only value that a query finds; None if it finds none, or if SQL is collected for ``sqlmigrate``."""
    if editor.collect_sql:
        return None
    with editor.connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        row = cursor.fetchone()
        return row[0] if row else None
