"""Tasks that a pause holds back, and how the engine finds subworkflows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import Workflow
from horsies_django.models import Task
from horsies_django.testing import travel
from horsies_django.workflows import gateway
from horsies_django.workflows.engine.repair import repair
from tests.database import is_postgres
from tests.workflows import bodies
from tests.workflows.runs import end_without_notifying, inconsistencies, open_tasks, states, times


@pytest.mark.slow
def test_a_repair_of_a_paused_workflow_leaves_its_tasks_held_back(drain):
    held = bodies.flaky.node(node_id="held", priority=1)(key="held")
    handle = Workflow("paused", [held, bodies.echo.node(node_id="running", priority=2)()]).start()
    with transaction.atomic():
        claims = {claim.task_name: claim.task_id for claim in Task.objects.claim("worker", start=1, prefetch=1)}
    gateway.mark_running("default", [claims[bodies.echo.module_path]])
    handle.pause()
    end_without_notifying("running", status="COMPLETED", result={"ok": 1})

    (report,) = repair("default")
    drain()

    assert report.ended_nodes == 1
    assert (states(handle), times("held")) == ({"held": "ENQUEUED", "running": "COMPLETED"}, 0)
    assert handle.resume()
    drain()
    assert (str(handle.status()), times("held"), open_tasks()) == ("COMPLETED", 1, 0)
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_prefetched_task_of_a_paused_workflow_keeps_its_row_when_the_slot_of_its_worker_frees(drain):
    held = bodies.flaky.node(node_id="held", priority=1)(key="held")
    handle = Workflow("paused", [held, bodies.stop.node(node_id="stop", priority=2)(action="pause")]).start()
    row = Task.objects.get(task_name=bodies.flaky.module_path)

    drain(threads=1, prefetch=2, start_ahead=0)

    assert states(handle) == {"held": "ENQUEUED", "stop": "COMPLETED"}
    task = Task.objects.get(pk=row.pk)
    assert (task.claim, task.status, task.claimed_by_worker_id, task.result) == (1, "PENDING", None, None)
    assert handle.resume()
    drain()
    assert (str(handle.status()), times("held"), Task.objects.count()) == ("COMPLETED", 1, 2)
    assert Task.objects.get(pk=row.pk).status == "COMPLETED"


def test_a_task_that_a_pause_held_back_is_due_from_the_resume(transactional_db):
    handle = Workflow("paused", [bodies.echo.node()()]).start()
    with transaction.atomic():
        Task.objects.claim("worker", start=0, prefetch=1)
    handle.pause()
    with travel(minutes=30):
        handle.resume()

    task = Task.objects.get()
    assert (task.status, task.blocked, task.due_at) == ("PENDING", False, task.released_at)
    assert task.released_at - task.enqueued_at >= timedelta(minutes=30)


def test_subworkflows_are_found_by_the_index_of_trees(transactional_db):
    if not is_postgres():
        pytest.skip("a plan of SQLite shows nothing about parameters")
    handle = Workflow("tree", [bodies.echo.node()()]).start()
    with CaptureQueriesContext(connection) as captured:
        handle.pause()
    (tree,) = [query["sql"] for query in captured if "UNION" in query["sql"]]

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {tree}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "horsies_workflow_tree" in plan
