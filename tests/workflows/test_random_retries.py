"""Random pauses, cancels and retries of runs, single nodes and children: no node is lost."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django import OnError
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.models import WorkflowTask
from horsies_django.reaper.recovery import recover_stuck_workflows
from horsies_django.workflows.handle import WorkflowHandle
from tests.workflows.runs import all_inconsistencies, step
from tests.workflows.test_reference import EXAMPLES, build_workflow, specs

pytestmark = pytest.mark.django_db(transaction=True)

ACTIONS = ("step", "step", "step", "pause", "resume", "cancel", "retry", "one", "one", "below", "one below")


def act(handle, action, number):
    """Take an action on the run, on one of its nodes, or on a subworkflow."""
    below = WorkflowRow.objects.filter(root_id=handle.id, depth=1).order_by("pk").values_list("pk", flat=True)
    runs = [handle, *map(WorkflowHandle, below)]
    run = runs[number % len(runs)] if "below" in action else handle
    if action == "step":
        step(1 + number % 3)
    elif "one" in action:
        nodes = list(run.tasks())
        run.retry(nodes[number % len(nodes)])
    elif action == "below":
        (run.pause, run.resume, run.cancel, run.retry, run.retry)[number % 5]()
    else:
        getattr(run, action)()


def run_to_the_end(handle, drain):
    """Run it, and resume or retry it where it stops, until it has ended by itself."""
    for _ in range(30):
        drain()
        paused = WorkflowRow.objects.filter(root_id=handle.id, status="PAUSED").order_by("depth")
        if [key for key in paused.values_list("pk", flat=True) if WorkflowHandle(key).resume()]:
            continue
        if str(handle.status()) != "CANCELLED" or not handle.retry():
            return


@pytest.mark.once
@given(
    specs(12),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 20)), min_size=4, max_size=14),
    st.sampled_from(OnError),
)
@settings(EXAMPLES, max_examples=3)
@pytest.mark.slow
def test_random_pauses_cancels_and_retries_lose_no_node(drain, nodes, actions, on_error):
    handle = build_workflow(nodes, uuid4().hex, on_error).start()

    for action, number in actions:
        act(handle, action, number)
        assert all_inconsistencies(handle) == [], (action, number)
        assert recover_stuck_workflows() == [], (action, number)
    run_to_the_end(handle, drain)

    assert all_inconsistencies(handle) == []
    rows = WorkflowTask.objects.filter(workflow=handle.id)
    stopped = rows.filter(status="SKIPPED", error_code="WORKFLOW_CANCELLED")
    failed = rows.filter(status="FAILED", map_index=None)
    assert str(handle.status()) in ("COMPLETED", "FAILED") or not stopped.exists()
    if str(handle.status()) in ("COMPLETED", "FAILED"):
        assert str(handle.status()) == ("FAILED" if failed.exists() or stopped.exists() else "COMPLETED")
