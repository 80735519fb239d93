"""The pages of rows with unreadable JSON, which only SQLite stores, and the pages of other rows beside them."""

import pytest
from django.db import connection
from django.urls import reverse

from horsies_django.models import Task, Workflow, WorkflowTask
from tests.jobs import tasks

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL stores no damaged JSON"),
]

DEEP = "[" * 100_000 + "]" * 100_000


def damage(rows, column, text):
    """Write damaged JSON into a column, past the checks."""
    field = rows.model._meta.pk
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = 1")
        for key in list(rows.values_list("pk", flat=True)):
            sql = f"UPDATE {rows.model._meta.db_table} SET {column} = %s WHERE id = %s"
            cursor.execute(sql, [text, field.get_db_prep_value(key, connection)])
        cursor.execute("PRAGMA ignore_check_constraints = 0")


def chain(**more):
    """Create a workflow of three nodes, each of which waits for the one before."""
    workflow = Workflow(name="chain", status="RUNNING", node_count=3)
    workflow.root_id = workflow.pk
    workflow.save()
    for index in range(3):
        waits_for = [index - 1] if index else []
        WorkflowTask.objects.create(
            workflow=workflow, task_index=index, node_id=f"n{index}", waits_for=waits_for, **more
        )
    return workflow


def page(client, row, **query):
    response = client.get(reverse("admin:horsies_django_workflow_change", args=[row.pk]), query)
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("column", ["kwargs", "result", "metadata"])
@pytest.mark.parametrize(("text", "error"), [(DEEP, "RecursionError"), ("[1],[2]", "JSONDecodeError")])
def test_a_node_with_unreadable_json_leaves_its_workflow_page_intact(admin_client, column, text, error):
    workflow = chain()
    damage(WorkflowTask.objects.filter(task_index=1), column, text)

    assert all(f">n{index}<" in page(admin_client, workflow) for index in range(3))
    assert f"be read: {error}" in page(admin_client, workflow, node="1")


@pytest.mark.parametrize("column", ["result", "error", "success_policy"])
def test_the_page_of_a_workflow_with_unreadable_json_opens(admin_client, column):
    workflow = chain(kind="sleep", kwargs={"a": 1})
    damage(Workflow.objects.all(), column, DEEP)

    assert "be read: RecursionError" in page(admin_client, workflow, node="1")


@pytest.mark.parametrize("column", ["args", "kwargs", "result", "metadata", "checkpoint"])
def test_a_task_with_unreadable_json_can_be_deleted(admin_client, column):
    key = tasks.noop.send().id
    Task.objects.filter(pk=key).update(status="COMPLETED", completed_at="2026-01-01T00:00Z")
    damage(Task.objects.all(), column, DEEP)

    admin_client.post(reverse("admin:horsies_django_task_do", args=[key, "delete"]), {"confirmed": "1"})

    assert not Task.objects.filter(pk=key).exists()
