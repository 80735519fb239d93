"""Starts of workflows, and the options that nodes inherit."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django import Workflow, sleep
from horsies_django.exceptions import InvalidWorkflow, PayloadMismatch
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.workflows.handle import WorkflowHandle
from tests.workflows import bodies
from tests.workflows.runs import inconsistencies, start_and_drain, states, times, value

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def one(key="one"):
    return Workflow("start", {"one": bodies.flaky.node()(key=key)}, output="one")


def test_a_start_is_rolled_back_with_its_transaction(drain):
    with transaction.atomic():
        handle = one().start()
        transaction.set_rollback(True)

    drain()

    assert handle.status() is None
    assert (WorkflowRow.objects.count(), WorkflowTask.objects.count(), Task.objects.count()) == (0, 0, 0)
    assert times("one") == 0


@pytest.mark.slow
def test_a_run_can_be_controlled_in_the_transaction_that_starts_it(drain):
    with transaction.atomic():
        handle = one().start()
        assert handle.pause()
        assert handle.resume()
        assert states(handle) == {"one": "ENQUEUED"}
    drain()

    assert handle.get(timeout=0).ok == 1


def test_a_cancel_is_rolled_back_with_its_transaction(drain):
    handle = one().start()
    with transaction.atomic():
        handle.cancel()
        transaction.set_rollback(True)

    drain()

    assert handle.get(timeout=0).ok == 1


def test_a_repeated_start_with_the_same_id_returns_the_same_run(drain):
    key = uuid4()

    first, second = one().start(key), one("other").start(str(key))
    drain()
    third = one().start(key)

    assert first.id == second.id == third.id == key
    assert third.get(timeout=0).ok == 1
    assert (times("one"), times("other"), WorkflowRow.objects.count()) == (1, 0, 1)


def test_a_repeated_start_keeps_its_transaction_usable(drain):
    key = one().start().id
    with transaction.atomic():
        assert one().start(key).id == key
        other = one("other").start()
    drain()

    assert other.get(timeout=0).ok == 1


def test_a_start_with_the_id_of_another_workflow_is_refused():
    key = one().start().id

    with pytest.raises(PayloadMismatch):
        Workflow("other", {"one": bodies.echo.node()()}).start(key)


@pytest.mark.parametrize("given", ["", "no-uuid", 7])
def test_a_start_with_an_invalid_id_is_refused(given):
    with pytest.raises(InvalidWorkflow, match="HRS-032"):
        one().start(given)


def test_async_code_can_start_a_workflow(drain):
    handle = async_to_sync(one().astart)()
    drain()

    assert handle.get(timeout=0).ok == 1


def test_a_handle_is_rebuilt_from_its_id(drain):
    handle = WorkflowHandle(str(start_and_drain(one(), drain).id))

    assert (handle.get(timeout=0).ok, value(handle, "one")) == (1, 1)


@pytest.mark.slow
def test_a_workflow_can_be_started_many_times(drain):
    workflow = one()
    handles = [workflow.start() for _ in range(5)]
    drain()

    assert {str(handle.status()) for handle in handles} == {"COMPLETED"}
    assert (times("one"), len({handle.id for handle in handles})) == (5, 5)


def test_nodes_inherit_queue_priority_and_deadline(drain):
    until = timezone.now() + timedelta(hours=1)
    own = until + timedelta(hours=1)
    nodes = {
        "plain": bodies.echo.node()(),
        "own": bodies.echo.node(queue_name="mine", priority=3, good_until=own)(),
        "nap": sleep(60),
        "leaf": bodies.Leaf.node()(key="leaf"),
        "condition": bodies.echo.node(run_when=bodies.yes)(),
    }
    handle = Workflow("terms", nodes, queue_name="slow", priority=7, good_until=until).start()

    rows = WorkflowTask.objects.filter(workflow=handle.id).select_related("task")
    found = {row.node_id: (row.task.queue_name, row.task.priority, row.task.good_until) for row in rows}
    inherited = ("slow", 7, until)
    assert found == {
        "plain": inherited,
        "own": ("mine", 3, own),
        "nap": inherited,
        "leaf": inherited,
        "condition": inherited,
    }


def test_a_subworkflow_inherits_queue_and_priority(drain):
    handle = Workflow("terms", {"sub": bodies.Waiting.node()()}, queue_name="slow", priority=7).start()
    drain()
    below = WorkflowRow.objects.get(parent__workflow=handle.id)
    WorkflowHandle(below.pk).send_event("approval", 1)

    task = Task.objects.get(workflow_id=handle.id, task_name="tests.workflows.bodies.echo")
    assert (task.queue_name, task.priority) == ("slow", 7)


def test_a_run_holds_its_unique_key_until_it_ends(drain):
    keyed = one().with_options(unique_key="import")
    first = keyed.start()

    second = keyed.start()
    assert second.id == first.id
    drain()

    third = keyed.start()
    assert third.id != first.id


def test_a_start_costs_the_same_number_of_statements_for_any_number_of_nodes(drain):
    def cost(size):
        nodes = [bodies.echo.node()() for _ in range(size)]
        workflow = Workflow("cost", [*nodes, bodies.echo.node(waits_for=nodes)()])
        with CaptureQueriesContext(connection) as queries:
            workflow.start()
        return len([query for query in queries if "pg_notify" not in query["sql"]])  # sent at most once in 10 ms

    assert cost(5) == cost(100)


@pytest.mark.slow
def test_a_node_with_500_parents_runs_once(drain):
    nodes = [bodies.echo.node()() for _ in range(500)]
    handle = start_and_drain(Workflow("fan", [*nodes, bodies.flaky.node(waits_for=nodes)(key="last")]), drain)

    assert str(handle.status()) == "COMPLETED"
    assert times("last") == 1
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_a_retry_while_another_run_holds_its_unique_key_is_refused(drain):
    keyed = Workflow("keyed", {"one": bodies.fail.node()()}, unique_key="import")
    first = start_and_drain(keyed, drain)
    second = Workflow("keyed", {"one": bodies.echo.node()()}, unique_key="import").start()

    assert first.retry() is False
    drain()

    assert (str(first.status()), str(second.status())) == ("FAILED", "COMPLETED")
    assert first.retry() is True
