"""The check that commands make before they start: the database has all migrations of this release."""

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from horsies_django.models.check_migrated import check_schema

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def unapplied():
    """Forget that the first migration was applied."""
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied("horsies_django", "0001_initial")
    yield "0001_initial"
    recorder.record_applied("horsies_django", "0001_initial")


@pytest.mark.parametrize(
    "command", [["horsies_worker", "--drain"], ["horsies_reaper", "--once"], ["horsies_task", "list"]]
)
def test_a_command_refuses_a_database_that_lacks_a_migration(unapplied, command):
    with pytest.raises(CommandError) as caught:
        call_command(*command)

    assert str(caught.value) == (
        f"Database 'default' lacks the migration {unapplied} of horsies_django: run `manage.py migrate` first."
    )


def test_a_database_with_the_migrations_of_a_later_release_passes():
    recorder = MigrationRecorder(connection)
    recorder.record_applied("horsies_django", "9999_later")
    try:
        check_schema("default")
    finally:
        recorder.record_unapplied("horsies_django", "9999_later")


def test_a_project_with_migrations_of_its_own_for_the_app_passes(unapplied, settings):
    settings.MIGRATION_MODULES = {"horsies_django": "shop.queue_migrations"}

    check_schema("default")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no roles")
def test_a_role_that_may_not_read_the_list_of_migrations_passes(unapplied):
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE horsies_blind")
        cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO horsies_blind")
        cursor.execute("REVOKE SELECT ON django_migrations FROM horsies_blind")
        cursor.execute("SET ROLE horsies_blind")
        try:
            check_schema("default")
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP OWNED BY horsies_blind")
            cursor.execute("DROP ROLE horsies_blind")
