"""The transitions in the documentation, compared with those that the engine makes."""

from __future__ import annotations

from itertools import product
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now

from horsies_django import Batch, OnError, RetryPolicy, Workflow, WorkflowStatus, WorkflowTaskStatus, wait_for_event
from horsies_django.core.lifecycle import Transition
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.recovery import recover_stuck_workflows
from horsies_django.workflows import lifecycle
from horsies_django.workflows.engine import repair
from tests.workflows import bodies
from tests.workflows.runs import end_without_notifying, start_and_drain, states, step, wait_and_drain

TABLES = {WorkflowStatus: "horsies_workflows", WorkflowTaskStatus: "horsies_workflow_tasks"}


def documented_transitions():
    """Return the transitions in the code, which are those of the documentation (see tests/test_docs.py)."""
    return {
        (TABLES[type(each.target)], str(source), str(each.target))
        for each in vars(lifecycle).values()
        if isinstance(each, Transition)
        for source in each.sources or [""]
        if source != each.target
    }


@pytest.fixture
def recorded_transitions(transactional_db):
    """Let triggers record every change of a status; return a function that reads them."""
    create, drop = (_postgresql if connection.vendor == "postgresql" else _sqlite)()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE recorded (table_name text, source text, target text)")
        for statement in create:
            cursor.execute(statement)

    def read():
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT table_name, source, target FROM recorded")
            return set(cursor.fetchall())

    yield read
    with connection.cursor() as cursor:
        for statement in [*drop, "DROP TABLE recorded"]:
            cursor.execute(statement)


def _sqlite():
    create, drop = [], []
    for table, (event, source) in product(TABLES.values(), {"INSERT": "''", "UPDATE": "OLD.status"}.items()):
        when = "WHEN OLD.status <> NEW.status" if event == "UPDATE" else ""
        insert = f"INSERT INTO recorded VALUES ('{table}', {source}, NEW.status)"
        create.append(f"CREATE TRIGGER track_{table}_{event} AFTER {event} ON {table} {when} BEGIN {insert}; END")
        drop.append(f"DROP TRIGGER track_{table}_{event}")
    return create, drop


def _postgresql():
    create = [
        "CREATE FUNCTION track() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'INSERT' THEN INSERT INTO recorded VALUES (TG_TABLE_NAME, '', NEW.status); "
        "ELSIF OLD.status <> NEW.status THEN INSERT INTO recorded VALUES (TG_TABLE_NAME, OLD.status, NEW.status); "
        "END IF; RETURN NULL; END $$"
    ]
    create += [
        f"CREATE TRIGGER track AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION track()"
        for table in TABLES.values()
    ]
    return create, [
        *(f"DROP TRIGGER track ON {table}" for table in TABLES.values()),
        "DROP FUNCTION track()",
    ]


def mapped(items, **options):
    source = bodies.echo.node(node_id="source")(value=items)
    each = bodies.flaky_item.map(
        over=source, param="item", kwargs={"key": "item", "fails": 1}, node_id="each", **options
    )
    return [source, each]


def expire(handle):
    WorkflowRow.objects.filter(pk=handle.id).update(good_until=Now())
    assert repair.expire("default") == 1


@pytest.mark.slow
@pytest.mark.once
def test_the_engine_makes_exactly_the_documented_transitions(recorded_transitions, drain):
    # A task that fails, its dependent, and a retry.
    first = bodies.flaky.node(node_id="first")(key="first", fails=1)
    handle = start_and_drain(Workflow("plain", [first, bodies.echo.node()(value=first)], on_error=OnError.PAUSE), drain)
    handle.resume()
    handle.retry()
    drain()
    start_and_drain(Workflow("cancelled", [bodies.echo.node()()]), Task.objects.cancel)
    # A task that ends before its node is marked as running, however slow this machine is.
    Workflow("ended", {"ended": bodies.echo.node()()}).start()
    end_without_notifying("ended", status="COMPLETED", result={"ok": 1})
    recover_stuck_workflows()
    # Cancelled or expired before it starts, then retried.
    for stop in ("cancel", expire):
        handle = Workflow("stopped", {"a": bodies.echo.node()()}).start()
        handle.cancel() if stop == "cancel" else expire(handle)
        WorkflowRow.objects.filter(pk=handle.id).update(good_until=None)
        handle.retry()
        handle.pause()
        handle.cancel() if stop == "cancel" else expire(handle)
    # Damaged while it is paused, so that the usual expiry fails.
    handle = Workflow("damaged", {"a": bodies.echo.node()()}).start()
    handle.pause()
    WorkflowTask.objects.filter(workflow=handle.id).update(dependents=5)
    expire(handle)
    # Maps: over an empty list, over no list, with a failed item, with a cancelled item.
    for items, options in product([[], 5, [1, 2]], [{}, {"run_when": bodies.yes}]):
        handle = start_and_drain(Workflow("map", mapped(items, **options)), drain)
        handle.retry()
        drain()
    handle = Workflow("map", mapped([1, 2])).start()
    step_until_mapped(handle)
    handle.cancel()
    handle.retry()
    drain()
    # A batch.
    with Batch("batch") as batch:
        batch.add(bodies.echo, value=1)
    drain()
    # Conditions.
    start_and_drain(Workflow("unwanted", [bodies.echo.node(run_when=bodies.no)()]), drain)
    # Events: received, timed out, paused, cancelled.
    start_and_drain(Workflow("event", [wait_for_event("approval")]), drain).send_event("approval")
    wait_and_drain(start_and_drain(Workflow("late", [wait_for_event("approval", timeout=0.05)]), drain), drain)
    handle = start_and_drain(Workflow("paused", [wait_for_event("approval", timeout=60)]), drain)
    handle.pause()
    handle.resume()
    handle.cancel()
    # Subworkflows: one that fails and is retried, one that pauses its parent while it is built.
    handle = start_and_drain(Workflow("sub", [bodies.Leaf.node()(key="leaf", fails=1)]), drain)
    handle.retry()
    drain()
    again = RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False)
    start_and_drain(Workflow("again", [bodies.Leaf.node(retry_policy=again)(key="again", fails=1)]), drain)
    key = uuid4()
    Workflow("paused", {"sub": bodies.Stopping.node()(action="pause", workflow_id=str(key))}).start(key)
    drain()

    assert recorded_transitions() - documented_transitions() == set()
    assert documented_transitions() - recorded_transitions() == set()


def step_until_mapped(handle):
    while states(handle)["each"] != "RUNNING":
        step()
