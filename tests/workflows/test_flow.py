"""``>>`` sets the order of nodes and does not change the nodes."""

import functools
import operator

import pytest

from horsies_django import Workflow, together
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of

pytestmark = pytest.mark.once


@pytest.fixture
def nodes():
    return [jobs.nothing.node(node_id=name)() for name in "abcdef"]


def order(*parts):
    """Return the ids of the dependencies of each node."""
    blueprint = blueprint_of(Workflow("flow", list(parts)))
    ids = [node.node_id for node in blueprint.nodes]
    return {node.node_id: "".join(sorted(ids[index] for index in node.waits_for)) for node in blueprint.nodes}


def test_a_chain_makes_each_node_wait_for_the_one_before(nodes):
    a, b, c, *_ = nodes

    assert order(a >> b >> c) == {"a": "", "b": "a", "c": "b"}


def test_a_list_in_a_flow_is_a_fan_out_or_a_fan_in(nodes):
    a, b, c, d, *_ = nodes

    assert order(a >> [b, c] >> d) == {"a": "", "b": "a", "c": "a", "d": "bc"}
    assert order([a, b] >> c) == {"a": "", "b": "", "c": "ab"}


def test_flows_can_be_nested(nodes):
    a, b, c, d, e, f = nodes

    assert order(a >> [b >> c, d] >> e >> f) == {"a": "", "b": "a", "c": "b", "d": "a", "e": "cd", "f": "e"}
    assert order((a >> b) >> (c >> d)) == order(a >> b >> c >> d)


def test_together_lets_one_list_follow_another(nodes):
    a, b, c, d, *_ = nodes

    assert order(together(a, b) >> [c, d]) == {"a": "", "b": "", "c": "ab", "d": "ab"}
    with pytest.raises(TypeError):
        [a, b] >> [c, d]  # noqa: B018


def test_an_empty_list_in_a_flow_has_no_effect(nodes):
    a, b, *_ = nodes

    assert order(a >> [] >> b) == {"a": "", "b": "a"}
    assert order([] >> a >> b) == {"a": "", "b": "a"}


def test_flows_of_one_workflow_can_share_nodes(nodes):
    a, b, c, d, *_ = nodes

    assert order(a >> c, b >> c, c >> d, a >> d) == {"a": "", "c": "ab", "b": "", "d": "ac"}


def test_a_repeated_dependency_counts_once(nodes):
    a, b, *_ = nodes
    c = jobs.nothing.node(node_id="c", waits_for=[a, a])()

    assert order(a >> c, a >> c, b) == {"a": "", "c": "a", "b": ""}


def test_a_flow_takes_a_generator_of_nodes(nodes):
    a, b, c, *_ = nodes

    assert order((node for node in (a, b)) >> c) == {"a": "", "b": "", "c": "ab"}


@pytest.mark.parametrize("other", [5, "b", [5], None, jobs.nothing])
def test_a_flow_refuses_objects_that_are_not_nodes(nodes, other):
    with pytest.raises(TypeError):
        nodes[0] >> other
    with pytest.raises(TypeError):
        other >> nodes[0]
    with pytest.raises(TypeError):
        together(nodes[0], other)


def test_a_node_can_have_different_dependencies_in_each_workflow(nodes):
    a, b, c, *_ = nodes

    assert order(a >> b) == {"a": "", "b": "a"}
    assert order(b >> a) == {"b": "", "a": "b"}
    assert order(a, b, c) == {"a": "", "b": "", "c": ""}
    assert a.waits_for == b.waits_for == ()


@pytest.mark.slow
def test_a_chain_of_ten_thousand_nodes_does_not_exceed_the_recursion_limit():
    nodes = [jobs.nothing.node()() for _ in range(10_000)]

    workflow = Workflow("chain", functools.reduce(operator.rshift, nodes))
    values = [jobs.unhinted.node()(value=0)]
    for _ in range(9_999):
        values.append(jobs.unhinted.node()(value=values[-1]))

    assert [node.waits_for for node in blueprint_of(workflow).nodes[1:]] == [(index,) for index in range(9_999)]
    assert blueprint_of(Workflow("values", values)).nodes[-1].values_from == {"value": 9_998}
    assert len(repr(values[-1])) < 100
