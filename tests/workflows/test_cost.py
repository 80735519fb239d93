"""What the end of a node costs, however many there are beside it, before it and after it (W-74, P-13)."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import Workflow
from horsies_django.workflows import door
from tests.workflows import bodies
from tests.workflows.running import contradictions, end_unheard, states

pytestmark = pytest.mark.django_db(transaction=True)


def cost(*node_ids):
    """End the tasks of these nodes, and return how many statements it takes to do what follows."""
    keys = [end_unheard(node_id, status="COMPLETED", result={"ok": 1}) for node_id in node_ids]
    with transaction.atomic(), CaptureQueriesContext(connection) as seen:
        door.follow("default", keys)
    return len(seen)


def fan_in(count):
    """Start a fan of so many; return its handle and the ids of its nodes, but for the last that waits for all."""
    nodes = [bodies.give.node(node_id=f"{count}-{place}")() for place in range(count)]
    handle = Workflow("in", [*nodes, bodies.give.node(node_id=f"{count}-last", waits_for=nodes)()]).start()
    return handle, [f"{count}-{place}" for place in range(count)]


def test_p_13_the_last_end_of_a_fan_costs_as_much_as_the_first_and_no_more_in_a_larger_one():
    costs = {}
    for count in (3, 60):
        handle, names = fan_in(count)
        costs[count] = [cost(name) for name in names]
        assert states(handle)[f"{count}-last"] == "ENQUEUED"
        assert contradictions(handle) == []

    of_small, of_large = costs[3], costs[60]
    assert set(of_large[:-1]) == {of_small[0]}
    assert of_large[-1] == of_small[-1]


def test_p_13_the_ends_of_many_at_once_cost_as_much_as_those_of_few():
    costs = []
    for count in (4, 50):
        handle, names = fan_in(count)
        costs.append(cost(*names))
        assert contradictions(handle) == []

    assert costs[0] == costs[1]


def test_w_74_what_waits_is_promoted_with_a_number_of_statements_that_does_not_grow():
    costs = []
    for count in (2, 80):
        first = bodies.give.node(node_id=f"{count}-first")()
        others = [bodies.give.node(node_id=f"{count}-{place}", waits_for=[first])() for place in range(count)]
        handle = Workflow("out", [first, *others]).start()
        costs.append(cost(f"{count}-first"))
        assert list(states(handle).values()) == ["COMPLETED", *["ENQUEUED"] * count]
        assert contradictions(handle) == []

    assert costs[0] == costs[1]
