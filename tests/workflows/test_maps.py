"""Maps: fan-out over a list that is known only at run time."""

from __future__ import annotations

import pytest

from horsies_django import Join, Workflow
from horsies_django.models import WorkflowTask
from tests.workflows import bodies
from tests.workflows.runs import codes, inconsistencies, start_and_drain, states, times, value


def mapped(items, **kwargs):
    source = bodies.echo.node(node_id="source")(value=items)
    each = bodies.flaky_item.map(over=source, param="item", kwargs={"key": "item", **kwargs}, node_id="each")
    return [source, each, bodies.echo.node(node_id="after")(value=each)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_a_map_returns_its_values_in_order(drain, count):
    items = [2 * number for number in reversed(range(count))]

    handle = start_and_drain(Workflow("map", mapped(items)), drain)

    assert value(handle, "each") == value(handle, "after") == [10 * item for item in items]
    assert str(handle.status()) == "COMPLETED"
    assert inconsistencies(handle) == []
    assert all(times(f"item-{item}") == 1 for item in items)


@pytest.mark.slow
def test_a_failed_item_fails_the_map_once_all_items_have_ended(drain):
    handle = start_and_drain(Workflow("map", mapped([0, 1, 2, 3], fails=99)), drain)

    found = codes(handle)
    assert (found["each"], found["after"]) == ("MAP_ITEM_FAILED", "UPSTREAM_SKIPPED")
    assert [found[f"each[{index}]"] for index in range(4)] == [None, "ODD", None, "ODD"]
    error = handle.get(timeout=0).err
    assert (error.error_code, error.data) == ("MAP_ITEM_FAILED", {"ok": 2, "failed": [1, 3]})
    assert handle.result_for("each[3]").err.error_code == "ODD"
    assert handle.results()["each[2]"].ok == 20
    assert inconsistencies(handle) == []


@pytest.mark.slow
def test_the_error_of_a_map_lists_its_first_100_failed_items(drain):
    source, each, _ = mapped(list(range(240)), fails=99)
    after = bodies.describe_error.node(node_id="after", allow_failed_deps=True)(outcome=each.result)

    handle = start_and_drain(Workflow("map", [source, each, after]), drain)

    assert value(handle, "after") == ["MAP_ITEM_FAILED", {"ok": 120, "failed": list(range(1, 200, 2))}]


@pytest.mark.parametrize("items", [None, "text", {"a": 1}, 7])
def test_a_map_over_a_value_that_is_not_a_list_fails(drain, items):
    handle = start_and_drain(Workflow("map", mapped(items)), drain)

    assert codes(handle) == {"source": None, "each": "MAP_NOT_A_LIST", "after": "UPSTREAM_SKIPPED"}
    assert str(handle.status()) == "FAILED"


def test_a_map_over_a_failed_node_is_skipped(drain):
    source = bodies.fail.node(node_id="source")()
    each = bodies.echo.map(over=source, node_id="each")

    handle = start_and_drain(Workflow("map", [source, each]), drain)

    assert codes(handle) == {"source": "NO", "each": "UPSTREAM_SKIPPED"}


def test_a_source_whose_body_fails_with_the_code_of_a_condition_does_not_skip_its_map(drain):
    source = bodies.fail.node(node_id="source")(code="CONDITION_NOT_MET")
    each = bodies.echo.map(over=source, node_id="each", allow_failed_deps=True)

    handle = start_and_drain(Workflow("map", [source, each]), drain)

    assert states(handle) == {"source": "FAILED", "each": "FAILED"}
    assert codes(handle) == {"source": "CONDITION_NOT_MET", "each": "MAP_NOT_A_LIST"}


def test_a_map_takes_values_besides_its_item_and_can_be_mapped_over(drain):
    numbers, more = bodies.echo.node(node_id="numbers")(value=[1, 2, 3]), bodies.echo.node(node_id="more")(value="x")
    pairs = bodies.describe_arguments.map(
        over=numbers, param="number", kwargs={"fixed": [0]}, waits_for=[more], values_from={"more": more}
    )
    again = bodies.echo.map(over=pairs, node_id="again")

    handle = start_and_drain(Workflow("maps", [numbers, more, pairs, again], output=again), drain)

    assert handle.get(timeout=0).ok == [{"number": number, "fixed": [0], "more": "x"} for number in (1, 2, 3)]


def test_a_map_item_sees_its_own_node_id(drain):
    items = bodies.echo.node(node_id="items")(value=["a", "b"])
    each = bodies.describe_node.map(over=items, param="note", node_id="each")

    handle = start_and_drain(Workflow("map", [items, each]), drain)

    assert [found[3] for found in value(handle, "each")] == ["each[0]", "each[1]"]


def test_map_items_have_their_tasks_retry_policy_and_a_map_counts_in_a_quorum(drain):
    keys = bodies.echo.node(node_id="keys")(value=["a", "b"])
    each = bodies.flaky_with_retries.map(
        over=keys, param="key", kwargs={"fails": 0}, node_id="each", run_when=bodies.yes
    )
    any_of = bodies.echo.node(node_id="any", waits_for=[keys, each], join=Join.QUORUM, min_success=2)()

    handle = start_and_drain(Workflow("map", [keys, each, any_of]), drain)

    assert value(handle, "each") == [1, 1]
    assert states(handle)["any"] == "COMPLETED"
    item = WorkflowTask.objects.select_related("task").get(workflow=handle.id, node_id="each[1]")
    assert item.task.max_retries == 3


@pytest.mark.slow
def test_a_condition_can_skip_a_map(drain):
    keys = bodies.echo.node(node_id="keys")(value=["a", "b"])
    each = bodies.echo.map(over=keys, node_id="each", skip_when=bodies.yes)
    after = bodies.echo.node(node_id="after", waits_for=[each])()

    handle = start_and_drain(Workflow("map", [keys, each, after]), drain)

    assert codes(handle) == {"keys": None, "each": "CONDITION_NOT_MET", "after": None}
    assert str(handle.status()) == "COMPLETED"


@pytest.mark.slow
def test_a_map_runs_a_thousand_items(drain):
    source = bodies.echo.node(node_id="source")(value=list(range(1_000)))
    each = bodies.echo.map(over=source, node_id="each")

    handle = start_and_drain(Workflow("map", [source, each], output=each), drain)

    assert handle.get(timeout=0).ok == list(range(1_000))


def test_map_items_receive_the_context_of_their_map(drain):
    first = bodies.echo.node(node_id="first")(value=7)
    items = bodies.echo.node(node_id="items")(value=["a", "b"])
    each = bodies.describe_item.map(
        over=items, param="item", node_id="each", waits_for=[first], workflow_ctx_from=[first], args_from={"one": first}
    )

    handle = start_and_drain(Workflow("map", [first, items, each]), drain)

    assert value(handle, "each") == [["a", "ok 7", "ok 7", "each[0]"], ["b", "ok 7", "ok 7", "each[1]"]]


def test_maps_with_long_ids_keep_their_items_apart(drain):
    items = bodies.echo.node(node_id="items")(value=[1, 2])
    maps = {f"{'x' * 127}{end}": bodies.echo.map(over=items) for end in "ab"}

    handle = start_and_drain(Workflow("map", {"items": items, **maps}), drain)

    assert str(handle.status()) == "COMPLETED"
    assert all(value(handle, name) == [1, 2] for name in maps)


@pytest.mark.slow
def test_map_items_take_the_options_of_their_map(drain):
    items = bodies.echo.node(node_id="items")(value=[1])
    options = {"queue_name": "slow", "priority": 5, "timeout": 30.0, "metadata": {"a": 1}}
    each = bodies.echo.map(over=items, node_id="each", **options)
    alone = bodies.echo.node(node_id="alone", **options)()

    handle = start_and_drain(Workflow("map", [items, each, alone]), drain)

    rows = WorkflowTask.objects.filter(workflow=handle.id, node_id__in=["each[0]", "alone"]).select_related("task")
    assert [{name: getattr(row.task, name) for name in options} for row in rows] == [options, options]
