"""The transitions in the documentation, compared with those that the engine makes."""

from __future__ import annotations

from itertools import product
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now

from horsies_django import Batch, OnError, RetryPolicy, Workflow, wait_for_event
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.recovery import recover_stuck_workflows
from horsies_django.workflows.engine import repair
from horsies_django.workflows.lifecycle import NODE_TRANSITIONS, WORKFLOW_TRANSITIONS
from tests.workflows import bodies
from tests.workflows.runs import end_unheard, ran, states, step, wait_and_drain

TABLES = {"horsies_workflows": WORKFLOW_TRANSITIONS, "horsies_workflow_tasks": NODE_TRANSITIONS}


def documented_transitions():
    return {
        (table, source, target)
        for table, transitions in TABLES.items()
        for each in transitions
        for source, target in product(map(str, each.sources or [""]), [str(each.target)])
        if source != target
    }


@pytest.fixture
def recorded_transitions(transactional_db):
    """Let triggers record every change of a status; return a function that reads them."""
    create, drop = (_postgresql if connection.vendor == "postgresql" else _sqlite)()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE noted (place text, source text, target text)")
        for statement in create:
            cursor.execute(statement)

    def read():
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT place, source, target FROM noted")
            return set(cursor.fetchall())

    yield read
    with connection.cursor() as cursor:
        for statement in [*drop, "DROP TABLE noted"]:
            cursor.execute(statement)


def _sqlite():
    create, drop = [], []
    for table, (event, source) in product(TABLES, {"INSERT": "''", "UPDATE": "OLD.status"}.items()):
        when = "WHEN OLD.status <> NEW.status" if event == "UPDATE" else ""
        note = f"INSERT INTO noted VALUES ('{table}', {source}, NEW.status)"
        create.append(f"CREATE TRIGGER note_{table}_{event} AFTER {event} ON {table} {when} BEGIN {note}; END")
        drop.append(f"DROP TRIGGER note_{table}_{event}")
    return create, drop


def _postgresql():
    create = [
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'INSERT' THEN INSERT INTO noted VALUES (TG_TABLE_NAME, '', NEW.status); "
        "ELSIF OLD.status <> NEW.status THEN INSERT INTO noted VALUES (TG_TABLE_NAME, OLD.status, NEW.status); "
        "END IF; RETURN NULL; END $$"
    ]
    create += [
        f"CREATE TRIGGER note AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION note()"
        for table in TABLES
    ]
    return create, [*(f"DROP TRIGGER note ON {table}" for table in TABLES), "DROP FUNCTION note()"]


def mapped(items, **options):
    source = bodies.give.node(node_id="source")(value=items)
    each = bodies.try_item.map(over=source, param="item", kwargs={"key": "item", "fails": 1}, node_id="each", **options)
    return [source, each]


def expire(handle):
    WorkflowRow.objects.filter(pk=handle.id).update(good_until=Now())
    assert repair.expire("default") == 1


@pytest.mark.once
def test_the_engine_makes_exactly_the_documented_transitions(recorded_transitions, drain):
    # A task that fails, its dependent, and a retry.
    first = bodies.try_.node(node_id="first")(key="first", fails=1)
    handle = ran(Workflow("plain", [first, bodies.give.node()(value=first)], on_error=OnError.PAUSE), drain)
    handle.resume()
    handle.retry()
    drain()
    ran(Workflow("cancelled", [bodies.give.node()()]), Task.objects.cancel)
    # A task that ends before its node is marked as running, however slow this machine is.
    Workflow("ended", {"ended": bodies.give.node()()}).start()
    end_unheard("ended", status="COMPLETED", result={"ok": 1})
    recover_stuck_workflows()
    # Cancelled or expired before it starts, then retried.
    for stop in ("cancel", expire):
        handle = Workflow("stopped", {"a": bodies.give.node()()}).start()
        handle.cancel() if stop == "cancel" else expire(handle)
        WorkflowRow.objects.filter(pk=handle.id).update(good_until=None)
        handle.retry()
        handle.pause()
        handle.cancel() if stop == "cancel" else expire(handle)
    # Damaged while it is paused, so that the usual expiry fails.
    handle = Workflow("damaged", {"a": bodies.give.node()()}).start()
    handle.pause()
    WorkflowTask.objects.filter(workflow=handle.id).update(dependents=5)
    expire(handle)
    # Maps: over an empty list, over no list, with a failed item, with a cancelled item.
    for items, options in product([[], 5, [1, 2]], [{}, {"run_when": bodies.yes}]):
        handle = ran(Workflow("map", mapped(items, **options)), drain)
        handle.retry()
        drain()
    handle = Workflow("map", mapped([1, 2])).start()
    step_until_mapped(handle)
    handle.cancel()
    handle.retry()
    drain()
    # A batch.
    with Batch("batch") as batch:
        batch.add(bodies.give, value=1)
    drain()
    # Conditions.
    ran(Workflow("unwanted", [bodies.give.node(run_when=bodies.no)()]), drain)
    # Events: received, timed out, paused, cancelled.
    ran(Workflow("event", [wait_for_event("said")]), drain).send_event("said")
    wait_and_drain(ran(Workflow("late", [wait_for_event("said", timeout=0.05)]), drain), drain)
    handle = ran(Workflow("paused", [wait_for_event("said", timeout=60)]), drain)
    handle.pause()
    handle.resume()
    handle.cancel()
    # Subworkflows: one that fails and is retried, one that pauses its parent while it is built.
    handle = ran(Workflow("sub", [bodies.Leaf.node()(key="leaf", fails=1)]), drain)
    handle.retry()
    drain()
    again = RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False)
    ran(Workflow("again", [bodies.Leaf.node(retry_policy=again)(key="again", fails=1)]), drain)
    key = uuid4()
    Workflow("paused", {"sub": bodies.Stopping.node()(how="pause", workflow_id=str(key))}).start(key)
    drain()

    assert recorded_transitions() - documented_transitions() == set()
    assert documented_transitions() - recorded_transitions() == set()


def step_until_mapped(handle):
    while states(handle)["each"] != "RUNNING":
        step()
