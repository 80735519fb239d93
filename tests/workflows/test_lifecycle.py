"""The tables of changes that the documentation prints, held against what the engine does to the rows."""

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


def promised():
    return {
        (table, source, target)
        for table, transitions in TABLES.items()
        for each in transitions
        for source, target in product(map(str, each.sources or [""]), [str(each.target)])
        if source != target
    }


@pytest.fixture
def seen(transactional_db):
    """Let the database note every change of a status; return what reads them."""
    made, gone = (_postgresql if connection.vendor == "postgresql" else _sqlite)()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE noted (place text, source text, target text)")
        for statement in made:
            cursor.execute(statement)

    def read():
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT place, source, target FROM noted")
            return set(cursor.fetchall())

    yield read
    with connection.cursor() as cursor:
        for statement in [*gone, "DROP TABLE noted"]:
            cursor.execute(statement)


def _sqlite():
    made, gone = [], []
    for table, (event, source) in product(TABLES, {"INSERT": "''", "UPDATE": "OLD.status"}.items()):
        when = "WHEN OLD.status <> NEW.status" if event == "UPDATE" else ""
        note = f"INSERT INTO noted VALUES ('{table}', {source}, NEW.status)"
        made.append(f"CREATE TRIGGER note_{table}_{event} AFTER {event} ON {table} {when} BEGIN {note}; END")
        gone.append(f"DROP TRIGGER note_{table}_{event}")
    return made, gone


def _postgresql():
    made = [
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP = 'INSERT' THEN INSERT INTO noted VALUES (TG_TABLE_NAME, '', NEW.status); "
        "ELSIF OLD.status <> NEW.status THEN INSERT INTO noted VALUES (TG_TABLE_NAME, OLD.status, NEW.status); "
        "END IF; RETURN NULL; END $$"
    ]
    made += [
        f"CREATE TRIGGER note AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION note()"
        for table in TABLES
    ]
    return made, [*(f"DROP TRIGGER note ON {table}" for table in TABLES), "DROP FUNCTION note()"]


def mapped(items, **options):
    source = bodies.give.node(node_id="source")(value=items)
    each = bodies.try_item.map(over=source, param="item", kwargs={"key": "item", "fails": 1}, node_id="each", **options)
    return [source, each]


def overdue(handle):
    WorkflowRow.objects.filter(pk=handle.id).update(good_until=Now())
    assert repair.expire("default") == 1


def test_the_engine_makes_exactly_the_documented_transitions(seen, drain):
    # A task that fails, what waits for it, and another try.
    first = bodies.try_.node(node_id="first")(key="first", fails=1)
    handle = ran(Workflow("plain", [first, bodies.give.node()(value=first)], on_error=OnError.PAUSE), drain)
    handle.resume()
    handle.retry()
    drain()
    ran(Workflow("called off", [bodies.give.node()()]), Task.objects.cancel)
    # One that ends before it is shown as running, be this machine as slow as it may.
    Workflow("unheard", {"unheard": bodies.give.node()()}).start()
    end_unheard("unheard", status="COMPLETED", result={"ok": 1})
    recover_stuck_workflows()
    # Stopped before it began, in each of the ways, and going on.
    for stop in ("cancel", overdue):
        handle = Workflow("stopped", {"a": bodies.give.node()()}).start()
        handle.cancel() if stop == "cancel" else overdue(handle)
        WorkflowRow.objects.filter(pk=handle.id).update(good_until=None)
        handle.retry()
        handle.pause()
        handle.cancel() if stop == "cancel" else overdue(handle)
    # Damaged while it was paused: it can't be expired as others are.
    handle = Workflow("damaged", {"a": bodies.give.node()()}).start()
    handle.pause()
    WorkflowTask.objects.filter(workflow=handle.id).update(dependents=5)
    overdue(handle)
    # Maps: of nothing, of no list, with a failed item, with one that was cancelled.
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
    # Events: one that comes, one that does not, one that is paused, one that is cancelled.
    ran(Workflow("event", [wait_for_event("said")]), drain).send_event("said")
    wait_and_drain(ran(Workflow("late", [wait_for_event("said", timeout=0.05)]), drain), drain)
    handle = ran(Workflow("paused", [wait_for_event("said", timeout=60)]), drain)
    handle.pause()
    handle.resume()
    handle.cancel()
    # Subworkflows: one that fails and goes on, one that pauses what it is to be a part of.
    handle = ran(Workflow("sub", [bodies.Leaf.node()(key="leaf", fails=1)]), drain)
    handle.retry()
    drain()
    again = RetryPolicy.fixed([1], auto_retry_for=["*"], jitter=False)
    ran(Workflow("again", [bodies.Leaf.node(retry_policy=again)(key="again", fails=1)]), drain)
    key = uuid4()
    Workflow("paused", {"sub": bodies.Stopping.node()(how="pause", workflow_id=str(key))}).start(key)
    drain()

    assert seen() - promised() == set()
    assert promised() - seen() == set()


def step_until_mapped(handle):
    while states(handle)["each"] != "RUNNING":
        step()
