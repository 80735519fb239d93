"""Operations that add indexes and constraints to a table in use, on a table of their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import psycopg
import pytest
from django.db import (
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    migrations,
    models,
)
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter
from django.db.models.functions import Lower
from django.test.utils import CaptureQueriesContext

from horsies_django.db import online
from horsies_django.db.online import AddColumnOnline, AddConstraintOnline, AddIndexOnline
from tests.conftest import database_url, wait_until
from tests.database import is_postgres

pytestmark = pytest.mark.django_db(transaction=True)

TABLE = "horsies_toy"

INDEX = models.Index(fields=["number"], condition=models.Q(number__gt=0), name="horsies_toy_number")
CHECK = models.CheckConstraint(condition=models.Q(number__lt=100), name="horsies_toy_number_is_small")
UNIQUE = models.UniqueConstraint(fields=["number", "name"], name="horsies_toy_is_there_once")
CONDITIONAL = models.UniqueConstraint(
    fields=["name"], condition=models.Q(number__gt=0), name="horsies_toy_has_its_name_alone"
)
FUNCTIONAL = models.UniqueConstraint(Lower("name"), name="horsies_toy_has_its_lower_name_alone")

OPERATIONS = [
    AddIndexOnline("toy", INDEX),
    *(AddConstraintOnline("toy", constraint) for constraint in (CHECK, UNIQUE, CONDITIONAL, FUNCTIONAL)),
]
CHECKED = OPERATIONS[1]
names = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: name_of(operation))


def name_of(operation):
    return (operation.index if isinstance(operation, AddIndexOnline) else operation.constraint).name


def create() -> Operation:
    return migrations.CreateModel(
        "Toy",
        [
            ("id", models.BigAutoField(primary_key=True)),
            ("number", models.IntegerField()),
            ("name", models.TextField()),
        ],
        {"db_table": TABLE},
    )


def state_before() -> ProjectState:
    state = ProjectState()
    create().state_forwards("toys", state)
    return state


def migrate(operation, *, atomic=False, backwards=False, collect_sql=False):
    """Apply an operation to the table as ``migrate`` does, or revert it; or return the SQL, as ``sqlmigrate`` does."""
    migration = type("Migration", (migrations.Migration,), {"atomic": atomic, "operations": [operation]})("m", "toys")
    with connection.schema_editor(atomic=atomic, collect_sql=collect_sql) as editor:
        getattr(migration, "unapply" if backwards else "apply")(state_before(), editor, collect_sql)
    return [sql for sql in editor.collected_sql if not sql.startswith("--")] if collect_sql else []


def execute(sql, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def schema():
    """Return the definitions of the table's indexes and constraints."""
    if is_postgres():
        return execute(
            "SELECT indexdef FROM pg_indexes WHERE tablename = %s UNION ALL SELECT concat_ws(' ', conname, "
            "pg_get_constraintdef(oid), convalidated) FROM pg_constraint WHERE conrelid = to_regclass(%s) ORDER BY 1",
            *[TABLE, TABLE],
        )
    return execute("SELECT sql FROM sqlite_master WHERE tbl_name = %s AND sql IS NOT NULL ORDER BY 1", TABLE)


@pytest.fixture(autouse=True)
def toys():
    """The table, with rows; return its model."""
    state = state_before()
    model = state.apps.get_model("toys", "Toy")
    with connection.schema_editor() as editor:
        editor.create_model(model)
    model.objects.bulk_create(model(number=number, name=f"toy {number}") for number in range(1, 50))
    yield model
    with connection.schema_editor() as editor:
        editor.delete_model(model)


@names
def test_the_schema_is_that_of_djangos_operation(operation):
    twin = (migrations.AddIndex if isinstance(operation, AddIndexOnline) else migrations.AddConstraint)(
        "toy", operation.index if isinstance(operation, AddIndexOnline) else operation.constraint
    )
    migrate(twin)
    expected = schema()
    migrate(twin, backwards=True)
    empty = schema()

    migrate(operation)
    assert schema() == expected
    assert expected != empty

    migrate(operation, backwards=True)
    assert schema() == empty


@names
def test_an_operation_that_was_applied_but_not_recorded_is_applied_again_without_an_error(operation):
    migrate(operation)
    once = schema()

    migrate(operation)

    assert schema() == once


@names
def test_sqlmigrate_prints_the_statements_after_the_migration_too(operation):
    migrate(operation)
    applied = schema()
    forwards, backwards = (migrate(operation, backwards=value, collect_sql=True) for value in (False, True))

    for sql in backwards:
        execute(sql)
    reverted = schema()
    for sql in forwards:
        execute(sql)

    assert schema() == applied != reverted
    if is_postgres():
        assert [sql for sql in forwards if "lock_timeout" in sql][:2] == [
            f"SET lock_timeout = {5_000 if operation == CHECKED else 600_000};",
            "RESET lock_timeout;",
        ]


@pytest.mark.parametrize(
    "constraint",
    [
        models.CheckConstraint(condition=models.Q(number__lt=100), name="horsies_toy_" + "long" * 20),
        models.UniqueConstraint(fields=["number"], name="horsies_toy_" + "long" * 20),
        models.UniqueConstraint(Lower("name"), name="horsies_toy_" + "long" * 20),
    ],
    ids=["check", "unique", "functional"],
)
def test_a_name_that_postgresql_truncates_is_found(constraint):
    operation = AddConstraintOnline("toy", constraint)
    migrate(operation)
    once = schema()

    migrate(operation)
    assert schema() == once

    migrate(operation, backwards=True)
    assert not any("horsies_toy_long" in definition for (definition,) in schema())


@names
def test_an_atomic_migration_is_refused(operation):
    with pytest.raises(NotSupportedError, match=f"{name_of(operation)} .*: set atomic = False"):
        migrate(operation, atomic=True)


@names
def test_a_migration_with_the_operation_can_be_written(operation):
    migration = type("Migration", (migrations.Migration,), {"operations": [operation]})("m", "toys")

    text = MigrationWriter(migration).as_string()

    assert f"horsies_django.db.online.{type(operation).__name__}(" in text
    assert name_of(operation) in text


def test_a_check_that_rows_violate_fails_until_they_are_corrected(toys):
    toys.objects.filter(number=7).update(number=700)

    with pytest.raises(IntegrityError):
        migrate(AddConstraintOnline("toy", CHECK))
    toys.objects.filter(number=700).update(number=7)
    migrate(AddConstraintOnline("toy", CHECK))

    with pytest.raises(IntegrityError):
        toys.objects.create(number=700, name="large")


def test_a_unique_constraint_that_rows_violate_leaves_nothing(toys):
    double = toys.objects.create(number=7, name="toy 7")
    before = schema()

    with pytest.raises(IntegrityError):
        migrate(AddConstraintOnline("toy", UNIQUE))
    assert schema() == before

    double.delete()
    migrate(AddConstraintOnline("toy", UNIQUE))
    with pytest.raises(IntegrityError):
        toys.objects.create(number=7, name="toy 7")


@pytest.mark.parametrize(
    "constraint",
    [
        models.UniqueConstraint(fields=["name"], name="later", deferrable=models.Deferrable.DEFERRED),
        models.UniqueConstraint(fields=["name"], name="with_more", include=["number"]),
        models.UniqueConstraint(fields=["name"], name="nulls", nulls_distinct=False),
    ],
    ids=lambda constraint: constraint.name,
)
def test_other_constraints_are_refused(constraint):
    with pytest.raises(TypeError, match=f"{constraint.name}: AddConstraintOnline allows no"):
        AddConstraintOnline("toy", constraint)


@pytest.fixture
def other():
    """Another session, on PostgreSQL."""
    if not is_postgres():
        pytest.skip("SQLite has one writer at a time, and no CONCURRENTLY")
    with psycopg.connect(database_url()) as session:
        yield session


@contextmanager
def migrating(operation, other, *settings):
    """Migrate in a thread during the block. At its end the other session commits; re-raise the thread's error."""
    errors = []

    def run():
        try:
            for setting in settings:
                execute(f"SET {setting}")
            migrate(operation)
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        other.commit()
        thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def waiting(query, action="1", condition="true"):
    """Return whether a session waits for a lock in such a query; or take an action on it."""
    return execute(
        f"SELECT {action} FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
        f"AND query LIKE %s AND {condition}",
        query,
    )


def is_valid(name):
    """Return whether an index is valid; None if there is none."""
    rows = execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", name)
    return rows[0][0] if rows else None


@pytest.mark.parametrize("operation", [AddIndexOnline("toy", INDEX), AddConstraintOnline("toy", CONDITIONAL)])
def test_others_write_while_an_index_is_built(operation, other, toys):
    other.execute(f"UPDATE {TABLE} SET number = 51 WHERE number = 1")  # the build waits for this transaction

    with migrating(operation, other):
        wait_until(lambda: waiting("CREATE %INDEX CONCURRENTLY%"))
        toys.objects.create(number=52, name="written meanwhile")

    assert is_valid(name_of(operation))


@pytest.mark.slow
@pytest.mark.sqlite
def test_no_timeout_of_the_session_ends_a_long_build(other, toys):
    settings = execute("SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')")
    other.execute(f"UPDATE {TABLE} SET number = 51 WHERE number = 1")

    with migrating(AddIndexOnline("toy", INDEX), other, *(f"{name} = 500" for (name,) in settings)):
        is_long = "clock_timestamp() - query_start > interval '600 ms'"
        wait_until(lambda: waiting("CREATE INDEX CONCURRENTLY%", condition=is_long))

    assert is_valid(INDEX.name)


def test_of_two_concurrent_runs_one_fails_and_the_index_stays(other, toys, monkeypatch):
    other.execute(f"UPDATE {TABLE} SET number = 51 WHERE number = 1")

    with migrating(AddIndexOnline("toy", INDEX), other):
        wait_until(lambda: waiting("CREATE INDEX CONCURRENTLY%"))
        monkeypatch.setattr(online, "SHARED_LOCK_TIMEOUT", 5_000)  # of the runs in this thread
        for backwards in (False, True):
            with pytest.raises(OperationalError, match=r"number on toy .*: another process .*migrate` again"):
                migrate(AddIndexOnline("toy", INDEX), backwards=backwards)

    assert is_valid(INDEX.name)
    migrate(AddIndexOnline("toy", INDEX), backwards=True)
    assert is_valid(INDEX.name) is None
    with migrating(AddIndexOnline("toy", INDEX), other):
        pass
    assert is_valid(INDEX.name)


@pytest.mark.parametrize("operation", [AddIndexOnline("toy", INDEX), AddConstraintOnline("toy", UNIQUE)])
def test_an_index_of_this_name_on_another_table_stays(operation, other):
    other.execute("CREATE TABLE horsies_other_toy (number int)")
    other.execute(f"CREATE INDEX {name_of(operation)} ON horsies_other_toy (number)")
    other.commit()
    try:
        with pytest.raises(ProgrammingError, match="already exists"):
            migrate(operation)
        migrate(operation, backwards=True)

        assert is_valid(name_of(operation))
    finally:
        execute("DROP TABLE horsies_other_toy")


def test_an_index_that_another_session_built_meanwhile_stays(other):
    other.execute(f"CREATE INDEX {INDEX.name} ON {TABLE} (number)")

    with pytest.raises(ProgrammingError, match="already exists"), migrating(AddIndexOnline("toy", INDEX), other):
        wait_until(lambda: waiting("CREATE INDEX CONCURRENTLY%"))

    assert is_valid(INDEX.name)


def test_an_interrupted_build_is_dropped_and_started_anew(other, toys):
    other.execute(f"UPDATE {TABLE} SET number = 51 WHERE number = 1")

    with pytest.raises(OperationalError), migrating(AddIndexOnline("toy", INDEX), other):
        wait_until(lambda: waiting("CREATE INDEX CONCURRENTLY%", "pg_terminate_backend(pid)"))
    assert is_valid(INDEX.name) is False

    migrate(AddIndexOnline("toy", INDEX))

    assert is_valid(INDEX.name)


def test_a_check_fails_rather_than_makes_others_wait_behind_a_long_transaction(other, toys, monkeypatch):
    monkeypatch.setattr(online, "EXCLUSIVE_LOCK_TIMEOUT", 50)
    other.execute(f"SELECT 1 FROM {TABLE}")

    with pytest.raises(OperationalError, match=r"number_is_small .*: waited 0\.05 s .*migrate` again"):
        migrate(AddConstraintOnline("toy", CHECK))

    other.commit()
    migrate(AddConstraintOnline("toy", CHECK))
    assert execute("SHOW lock_timeout") == [("0",)]


def test_a_build_that_waited_too_long_leaves_an_invalid_index_to_the_next_run(other, toys):
    other.execute(f"UPDATE {TABLE} SET number = 51 WHERE number = 1")

    with pytest.MonkeyPatch.context() as patch, CaptureQueriesContext(connection) as queries:
        patch.setattr(online, "SHARED_LOCK_TIMEOUT", 50)
        with pytest.raises(OperationalError, match=r"waited 0\.05 s .* an invalid index may remain"):
            migrate(AddIndexOnline("toy", INDEX))
    assert is_valid(INDEX.name) is False
    assert not any("DROP" in query["sql"] for query in queries)  # it would wait for the same transaction

    other.commit()
    migrate(AddIndexOnline("toy", INDEX))
    assert is_valid(INDEX.name)


def test_a_validation_that_was_interrupted_resumes(other, toys):
    toys.objects.create(number=700, name="large")
    with pytest.raises(IntegrityError):
        migrate(AddConstraintOnline("toy", CHECK))
    assert execute("SELECT convalidated FROM pg_constraint WHERE conname = %s", CHECK.name) == [(False,)]
    toys.objects.filter(number=700).delete()

    migrate(AddConstraintOnline("toy", CHECK))

    assert execute("SELECT convalidated FROM pg_constraint WHERE conname = %s", CHECK.name) == [(True,)]


def test_a_column_waits_for_its_lock_no_longer_than_other_queries_can_bear():
    add = AddColumnOnline("toy", "colour", models.TextField(null=True))

    for backwards in (False, True):
        first, *rest = migrate(add, atomic=True, collect_sql=True)
        limit = [sql for sql in (first, *rest) if "lock_timeout" in sql]
        assert limit == (["SET LOCAL lock_timeout = 5000;"] if is_postgres() else [])
        migrate(add, atomic=True, backwards=backwards)
