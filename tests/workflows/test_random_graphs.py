"""Random graphs, with edges written in each way that users can: the blueprint has the same edges."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies_django import InvalidWorkflow, Workflow
from horsies_django.core.workflow_errors import DefinitionErrorCode
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of
from tests.workflows.test_graph import NO_DEADLINE, graphs, is_acyclic

WAYS = ("waits_for", "value", "result", "list", "flow", "none", "none", "none")


@st.composite
def edges(draw):
    """Return the number of nodes, and how each edge from an earlier to a later node is written."""
    size = draw(st.integers(1, 12))
    return size, {pair: draw(st.sampled_from(WAYS)) for pair in combinations(range(size), 2)}


def sources(ways, index, way):
    return [earlier for (earlier, later), its_way in ways.items() if later == index and its_way == way]


@pytest.mark.slow
@given(edges(), st.randoms(use_true_random=False))
@NO_DEADLINE
def test_a_blueprint_has_every_edge_and_argument_source_of_a_random_graph(graph, random):
    size, ways = graph
    nodes = []
    for index in range(size):
        arguments = {f"v{source}": nodes[source] for source in sources(ways, index, "value")}
        arguments |= {f"r{source}": nodes[source].result for source in sources(ways, index, "result")}
        if several := sources(ways, index, "list"):
            arguments["several"] = [nodes[source] for source in several]
        waits_for = [nodes[source] for source in sources(ways, index, "waits_for")]
        nodes.append(jobs.anything.node(waits_for=waits_for)(index=index, **arguments))
    flows = [nodes[one] >> nodes[other] for (one, other), way in ways.items() if way == "flow"]
    random.shuffle(parts := [*nodes, *flows])

    workflow = Workflow("random", parts)

    blueprint = blueprint_of(workflow).nodes
    index_of = [workflow.index(node) for node in nodes]
    for index, own in enumerate(index_of):
        node = blueprint[own]
        written = [pair for pair, way in ways.items() if way != "none"]
        assert set(node.waits_for) == {index_of[one] for one, other in written if other == index}
        assert set(node.dependents) == {index_of[other] for one, other in written if one == index}
        assert len(set(node.waits_for)) == len(node.waits_for)
        values = {f"v{source}": index_of[source] for source in sources(ways, index, "value")}
        if several := sources(ways, index, "list"):
            values["several"] = tuple(index_of[source] for source in several)
        assert node.values_from == values
        assert node.args_from == {f"r{source}": index_of[source] for source in sources(ways, index, "result")}


@pytest.mark.slow
@given(graphs())
@NO_DEADLINE
def test_a_workflow_is_refused_for_a_cycle_if_and_only_if_there_is_one(waits_for):
    nodes = [jobs.nothing.node()() for _ in waits_for]
    flows = [nodes[source] >> nodes[index] for index, found in enumerate(waits_for) for source in found]

    codes = set()
    try:
        Workflow("random", [*nodes, *flows])
    except InvalidWorkflow as error:
        codes = {mistake.code for mistake in error.mistakes}

    assert (DefinitionErrorCode.CYCLE in codes) == (not is_acyclic(waits_for))
    assert (DefinitionErrorCode.NO_ROOT in codes) == bool(waits_for and all(waits_for))
