"""Workflows over a network with a long round trip to the database."""

import time

import pytest

from horsies_django import Join, Workflow
from horsies_django.models import Task
from horsies_django.models import Workflow as WorkflowRow
from tests.workflows import bodies


def echo_node(**options):
    return bodies.echo.node(**options)()


def chain(length):
    nodes = [echo_node()]
    while len(nodes) < length:
        nodes.append(echo_node(waits_for=nodes[-1:]))
    return nodes


def fan(width, join=Join.ALL):
    first = echo_node()
    middle = [echo_node(waits_for=[first]) for _ in range(width)]
    return [first, *middle, echo_node(waits_for=middle, join=join)]


def mapped(length):
    items = bodies.echo.node()(value=list(range(length)))
    each = bodies.echo.map(over=items)
    return [items, each, bodies.echo.node()(value=each)]


def conditions():
    first = echo_node()
    run, left = (bodies.echo.node(waits_for=[first], run_when=condition)() for condition in (bodies.yes, bodies.no))
    return [first, run, left, echo_node(waits_for=[run, left])]


def mix():
    """Return workflows of several shapes, with 384 tasks."""
    shapes = [*(chain(4) for _ in range(25)), *(fan(20) for _ in range(4)), *(mapped(20) for _ in range(3))]
    shapes += [fan(3, join) for join in (Join.ALL, Join.ANY) * 6]
    shapes += [conditions() for _ in range(6)]
    shapes += [[bodies.Leaf.node()(key=f"leaf {number}"), echo_node()] for number in range(10)]
    return [Workflow("mix", nodes) for nodes in shapes]


@pytest.mark.nightly
@pytest.mark.slow
def test_workflows_of_384_tasks_complete_at_a_round_trip_of_half_a_second(own_cluster, proxy, start):
    for workflow in mix():
        workflow.start()
    proxy.delay = 0.25  # each way

    began = time.monotonic()
    worker = start(
        "horsies_worker", "--drain", "--threads", "100", "--no-reaper", "--no-scheduler", DATABASE_URL=proxy.url
    )

    assert worker.wait(240) == 0
    print(f"{Task.objects.count()} tasks took {time.monotonic() - began:.0f} s")
    assert set(WorkflowRow.objects.values_list("status", flat=True)) == {"COMPLETED"}
    assert set(Task.objects.values_list("status", flat=True)) == {"COMPLETED"}
