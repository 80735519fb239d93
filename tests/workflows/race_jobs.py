"""Tasks and workflows for tests of races between workers and users."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

from horsies_django import (
    Join,
    OnError,
    TaskError,
    TaskResult,
    Workflow,
    WorkflowDefinition,
    task,
    wait_for_event,
    workflow_builder,
)
from horsies_django.enqueue.nodes import Node
from tests.jobs.models import Entry

#: Seconds for which a body waits, in its slot, for the other body to start.
PATIENCE = 5.0


@task
def rendezvous(folder: str, key: str, other: str) -> float:
    """Wait until the other body runs too, or the time is over; return the end, on the clock that all processes share.

    Two workers may fill all their slots with sides of different diamonds. Such bodies do not meet, which is no error.
    """
    Path(folder, key).touch()
    limit = time.monotonic() + PATIENCE
    while not Path(folder, other).exists() and time.monotonic() < limit:
        time.sleep(0.0005)
    return time.monotonic()


@task
def work(key: str, fails: int = 0, seconds: float = 0.0) -> TaskResult[int, TaskError[Any]]:
    """Create an entry and take some time; fail in the first ``fails`` runs."""
    Entry.objects.create(key=key)
    time.sleep(seconds)
    if (times := Entry.objects.filter(key=key).count()) <= fails:
        return TaskResult(err=TaskError(error_code="NOT_YET", message=f"{key}: time {times} of {fails}"))
    return TaskResult(ok=times)


@task
def numbers() -> list[int]:
    """Return the items of a map."""
    return [0, 1, 2]


@task
def work_on(item: int, key: str, fails: int, seconds: float) -> TaskResult[int, TaskError[Any]]:
    """Do the work of one item; only item 1 can fail."""
    return work.func(f"{key}[{item}]", fails if item == 1 else 0, seconds)


class TwoNodes(WorkflowDefinition[int]):
    """A subworkflow of two nodes."""

    class Meta:
        definition_key = "tests.racing.two_nodes"
        cases = [{"key": "below", "fails": 0, "seconds": 0.0}]

    @classmethod
    def build_with(cls, *, key: str, fails: int, seconds: float) -> Workflow[int]:
        first = work.node(node_id="first")(key=f"{key}.first", seconds=seconds)
        second = work.node(node_id="second", waits_for=[first])(key=f"{key}.second", fails=fails, seconds=seconds)
        return Workflow("below", [first, second], output=second)


def diamond(folder: str, key: str) -> list[Node[Any]]:
    """Return a diamond whose sides run in two workers and end at the same time."""
    top = numbers.node(node_id=f"{key}-top")()
    left = rendezvous.node(node_id=f"{key}-left", waits_for=[top], queue_name="left")(
        folder=folder, key=f"{key}-left", other=f"{key}-right"
    )
    right = rendezvous.node(node_id=f"{key}-right", waits_for=[top], queue_name="right")(
        folder=folder, key=f"{key}-right", other=f"{key}-left"
    )
    return [top, left, right, work.node(node_id=f"{key}-end", waits_for=[left, right])(key=key)]


@workflow_builder(cases=[{"key": "any", "random": Random(1)}])
def random_workflow(key: str, random: Random) -> Workflow[Any]:
    """Return a workflow with every kind of node; some nodes fail at first."""

    def arguments(name: str, max_fails: int = 1) -> dict[str, Any]:
        return {
            "key": f"{key}.{name}",
            "fails": random.choice([0, 0, 0, max_fails]),
            "seconds": random.choice([0.0, 0.0, 0.03]),
        }

    first = work.node(node_id="first")(**arguments("first"))
    left = work.node(node_id="left", waits_for=[first])(**arguments("left", 2))
    right = work.node(node_id="right", waits_for=[first])(**arguments("right"))
    approval = wait_for_event("approval", node_id="approval", waits_for=[first])
    items = numbers.node(node_id="items")()
    each = work_on.map(over=items, param="item", kwargs=arguments("each"), node_id="each")
    below = TwoNodes.node(node_id="below", waits_for=[left])(**arguments("below"))
    join = random.choice([{}, {"join": Join.ANY}, {"allow_failed_deps": True}])
    end = work.node(node_id="end", waits_for=[left, right, approval], **join)(**arguments("end"))
    last = work.node(node_id="last", waits_for=[end, each, below])(**arguments("last"))
    nodes = [first, left, right, approval, items, each, below, end, last]
    return Workflow("random", nodes, on_error=random.choice(list(OnError)))
