"""A workflow as a whole: node ids, indexes, output, policy and copies."""

import sys
from datetime import UTC, datetime

import pytest

from horsies_django import InvalidWorkflow, NodeKey, OnError, SuccessCase, SuccessPolicy, Workflow
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of

TOMORROW = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def nodes():
    return [jobs.fetch.node()(url=name) for name in "abc"]


@pytest.mark.parametrize(
    ("name", "node_id"),
    [
        ("import", "import:0"),
        ("Import Pages!", "import-pages:0"),
        ("日本", "workflow:0"),
        ("x" * 255, "x" * 112 + ":0"),
    ],
)
def test_a_node_without_an_id_gets_the_workflow_slug_and_its_index(name, node_id):
    assert Workflow(name, [jobs.nothing.node()()]).node_ids == (node_id,)


def test_ids_come_from_the_node_then_the_dict_then_the_index(nodes):
    a, b, _ = nodes
    own = jobs.nothing.node(node_id="own")()

    assert Workflow("w", {"a": a, "b": own}).node_ids == ("a", "own")
    assert Workflow("w", {"a": a, "order": a >> b}).node_ids == ("a", "w:1")


def test_nodes_are_indexed_in_the_order_of_the_list(nodes):
    a, b, c = nodes
    workflow = Workflow("w", [c, a >> b])

    assert workflow.nodes == (c, a, b)
    assert [workflow.index(node) for node in nodes] == [1, 2, 0]
    assert workflow.index("w:0") == workflow.index(NodeKey("w:0")) == 0
    with pytest.raises(KeyError, match="is not in <Workflow 'w': 3 nodes>"):
        workflow.index("d")
    blueprint = blueprint_of(workflow)
    assert [node.task_index for node in blueprint.nodes] == [0, 1, 2]
    assert [node.dependents for node in blueprint.nodes] == [(), (2,), ()]


def test_nodes_can_be_one_node_one_flow_or_a_generator(nodes):
    a, b, _ = nodes

    assert Workflow("w", a).nodes == (a,)
    assert Workflow("w", a >> b).nodes == (a, b)
    assert Workflow("w", (node for node in nodes)).with_options(priority=3).nodes == tuple(nodes)


def test_a_blueprint_stores_output_and_success_policy_by_index(nodes):
    a, b, c = nodes
    policy = SuccessPolicy([SuccessCase(required=[b], optional=["a"]), SuccessCase([NodeKey("a")])])

    workflow = Workflow("w", {"a": a, "b": b, "c": c}, output=b, success_policy=policy)

    assert workflow.output is b
    assert blueprint_of(workflow).output_index == 1
    assert blueprint_of(workflow).success_policy == [
        {"required": [1], "optional": [0]},
        {"required": [0], "optional": []},
    ]
    for output in ("b", NodeKey("b")):
        assert workflow.with_options(output=output).output is b


def test_options_that_are_not_set_are_none(nodes):
    blueprint = blueprint_of(Workflow("w", nodes))

    assert (blueprint.name, blueprint.on_error, blueprint.backend) == ("w", "FAIL", "default")
    for name in ("definition_key", "output_index", "success_policy", "good_until", "unique_key"):
        assert getattr(blueprint, name) is None


@pytest.mark.parametrize("on_error", [OnError.PAUSE, "PAUSE", "pause"])
def test_on_error_accepts_an_enum_or_a_string(nodes, on_error):
    assert blueprint_of(Workflow("w", nodes, on_error=on_error)).on_error == "PAUSE"


def test_with_options_returns_a_changed_copy(nodes):
    first = Workflow("w", nodes, priority=3, output=nodes[0])

    copy = first.with_options(priority=5, unique_key="today", good_until=TOMORROW, output=None)

    assert [node.priority for node in blueprint_of(first).nodes] == [3, 3, 3]
    assert [node.priority for node in blueprint_of(copy).nodes] == [5, 5, 5]
    assert (blueprint_of(copy).unique_key, blueprint_of(copy).good_until) == ("today", TOMORROW)
    assert (first.output, copy.output, copy.nodes) == (nodes[0], None, first.nodes)
    with pytest.raises(InvalidWorkflow, match="HRS-015"):
        first.with_options(priority=500)


def test_the_calls_that_build_a_workflow_grow_with_its_nodes_and_no_faster():
    def calls(count):
        pages = [jobs.fetch.node()(url=str(number)) for number in range(count)]
        events = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            Workflow("fan", [jobs.report.node()(pages=pages), *pages])
        finally:
            sys.setprofile(None)
        return len(events)

    calls(10)  # fills the caches

    assert calls(1_000) < 2.1 * calls(500)
