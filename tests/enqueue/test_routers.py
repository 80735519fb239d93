"""A queue in a database of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from horsies_django.models import Task, TaskAttempt
from horsies_django.routers import QueueRouter
from tests.conftest import ROOT
from tests.jobs.models import Entry

router = QueueRouter()


@pytest.mark.slow
def test_a_project_works_with_its_queue_in_a_database_of_its_own(tmp_path):
    other = tmp_path / "default.sqlite3"
    url = f"sqlite:///{tmp_path / 'queue.sqlite3'}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.enqueue.routed_queue"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url, "OTHER_DATABASE": str(other)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "all is well" in done.stdout, done.stdout + done.stderr


def use_databases(settings, **databases):
    settings.TASKS = {
        alias: {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {"database": database}}
        for alias, database in databases.items()
    }


def test_our_models_are_routed_to_the_first_backends_database(settings):
    use_databases(settings, other="queue", default="default")

    assert router.db_for_read(Task) == router.db_for_write(Task) == "queue"
    assert router.db_for_read(Entry) is router.db_for_write(Entry) is None
    row = Task()
    row._state.db = "default"
    assert router.db_for_read(TaskAttempt, instance=row) == "default"


def test_our_tables_are_only_in_the_queues_databases(settings):
    use_databases(settings, default="queue")

    assert [router.allow_migrate(db, "horsies_django") for db in ("default", "queue", "replica")] == [
        False,
        True,
        False,
    ]
    assert [router.allow_migrate(db, "auth") for db in ("default", "queue", "replica")] == [None, False, None]


def test_a_queue_in_the_default_database_keeps_no_other_table_out(settings):
    use_databases(settings, default="default")

    assert router.allow_migrate("default", "horsies_django")
    assert router.allow_migrate("default", "auth") is None


def test_relations_stay_within_one_database(settings):
    use_databases(settings, default="queue")
    first, second = Task(), TaskAttempt()

    first._state.db = second._state.db = "queue"
    assert router.allow_relation(first, second)
    second._state.db = "default"
    assert not router.allow_relation(first, second)
    assert router.allow_relation(first, Entry()) is None


def test_without_one_of_our_backends_nothing_is_routed(settings):
    settings.TASKS = {}

    assert router.db_for_read(Task) is None
    assert not router.allow_migrate("default", "horsies_django")
