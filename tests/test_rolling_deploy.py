"""During a rolling deploy, processes of the previous release write rows without the new columns."""

import uuid

import pytest
from django.db.migrations.loader import MigrationLoader

from horsies_django.models import Queue, Task, Workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def older():
    """Return the models as they were before the latest migration."""
    return MigrationLoader(None).project_state(("horsies_django", "0006_admin")).apps


def test_a_process_of_the_previous_release_can_insert_into_the_tables_of_this_one(older):
    root = uuid.uuid4()

    older.get_model("horsies_django", "Task").objects.create(task_name="tests.jobs.tasks.add")
    older.get_model("horsies_django", "Workflow").objects.create(id=root, root_id=root, name="w")
    older.get_model("horsies_django", "Queue").objects.create(name="q")

    assert Task.objects.get().blocked is False
    assert Workflow.objects.get().is_batch is False
    assert Queue.objects.get().rate_limit is None
