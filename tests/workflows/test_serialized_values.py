"""Values that plain JSON cannot express, on every path through a workflow."""

from __future__ import annotations

import datetime
from decimal import Decimal
from uuid import UUID

import pytest

from horsies_django import Workflow, wait_for_event
from tests.workflows import bodies
from tests.workflows.runs import start_and_drain, value

pytestmark = pytest.mark.once

VALUE = {"day": datetime.date(2026, 1, 2), "$type": [Decimal("1.50"), UUID(int=7)], "plain": [1, None, {"a": "é"}]}
RICH = {
    "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
}


@pytest.fixture(autouse=True)
def _rich(settings):
    settings.TASKS = RICH


@pytest.mark.slow
def test_rich_values_pass_from_node_to_node(drain):
    one, listed = bodies.echo.node()(value=VALUE), bodies.echo.node()(value=[VALUE, 1])
    nodes = {
        "one": one,
        "listed": listed,
        "value": bodies.echo.node()(value=one),
        "list": bodies.echo.node()(value=[one, listed]),
        "map": bodies.echo.map(over=listed),
        "leaf": bodies.Leaf.node()(key="leaf", value=one),
    }

    handle = start_and_drain(Workflow("rich", nodes, output="list"), drain)

    assert value(handle, "value") == VALUE
    assert value(handle, "list") == handle.get(timeout=0).ok == [VALUE, [VALUE, 1]]
    assert value(handle, "map") == [VALUE, 1]
    assert value(handle, "leaf") == ["leaf", VALUE]


def test_the_result_of_a_workflow_keeps_rich_values(drain):
    handle = start_and_drain(Workflow("rich", {"one": bodies.echo.node()(value=VALUE)}), drain)

    assert handle.get(timeout=0).ok["one"].ok == VALUE


def test_an_event_payload_keeps_rich_values(drain):
    approval = wait_for_event("approval", node_id="approval")
    handle = start_and_drain(Workflow("rich", [approval, bodies.echo.node(node_id="after")(value=approval)]), drain)

    handle.send_event("approval", VALUE)
    drain()

    assert value(handle, "approval") == value(handle, "after") == VALUE


@pytest.mark.parametrize("payload", ["a\0b", float("nan"), object(), "\ud800"])
def test_an_event_payload_that_cannot_be_stored_is_refused(drain, payload):
    handle = start_and_drain(Workflow("rich", {"approval": wait_for_event("approval")}), drain)

    with pytest.raises((TypeError, ValueError), match="payload"):
        handle.send_event("approval", payload)

    assert handle.send_event("approval", 1)
    assert value(handle, "approval") == 1


def test_nodes_with_equal_arguments_of_different_types_keep_their_own(transactional_db, drain):
    values = [1, True, 1.0, [0], [False], {"a": 1}, {"a": True}]
    nodes = [bodies.echo.node(node_id=f"n{index}")(value=value) for index, value in enumerate(values)]
    source = bodies.echo.node(node_id="source")(value=values)
    handle = Workflow("types", [*nodes, source, bodies.echo.map(over=source, node_id="map")]).start()
    drain()

    results = handle.results()

    assert [repr(results[f"n{index}"].ok) for index in range(len(values))] == [repr(value) for value in values]
    assert repr(results["map"].ok) == repr(values)
