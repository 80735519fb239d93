"""Advancing workflows, level by level."""

from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import Workflow, wait_for_event
from tests.workflows import bodies
from tests.workflows.runs import inconsistencies


def test_levels_that_end_at_once_cost_as_many_statements_for_12_as_for_4(transactional_db):
    def cost_of(levels):
        nodes = [wait_for_event("approval")]
        for _ in range(levels):
            nodes.append(wait_for_event("approval", waits_for=nodes[-1:]))
        handle = Workflow("events", [*nodes, bodies.echo.node(waits_for=nodes[-1:])()]).start()
        with CaptureQueriesContext(connection) as captured:
            handle.send_event("approval")
        assert inconsistencies(handle) == []
        assert sorted(map(str, handle.tasks().values())) == ["COMPLETED"] * (levels + 1) + ["ENQUEUED"]
        return len(captured)

    assert cost_of(12) == cost_of(4)
