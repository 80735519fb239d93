"""How arguments, options, maps, sleeps and events of a node appear in its blueprint."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest

from horsies_django import Join, NodeKey, RetryPolicy, Workflow, sleep, wait_for_event
from horsies_django.models import Task
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of

TOMORROW = datetime(2100, 1, 1, tzinfo=UTC)


def last(*nodes, **options):
    """Return the blueprint of the last node."""
    return blueprint_of(Workflow("import", list(nodes), **options)).nodes[-1]


def test_a_node_stores_its_arguments_as_a_send_does():
    node = last(jobs.fetch.node()(url="https://ü", tries=5))

    assert (node.kind, node.task_name) == ("task", "tests.workflows.jobs.fetch")
    assert node.kwargs == {"url": "https://ü", "tries": 5}


def test_a_node_as_an_argument_passes_its_value_and_is_a_dependency():
    page = jobs.fetch.node()(url="x")

    for argument in (page, page.value):
        node = last(page, jobs.save.node()(data=argument, table="t"))
        assert (node.values_from, node.args_from, node.waits_for) == ({"data": 0}, {}, (0,))
        assert node.kwargs == {"table": "t"}


def test_a_node_result_as_an_argument_passes_the_result():
    page = jobs.fetch.node()(url="x")

    node = last(page, jobs.check_outcome.node()(outcome=page.result))

    assert (node.args_from, node.values_from, node.waits_for) == ({"outcome": 0}, {}, (0,))


def test_a_list_of_nodes_as_an_argument_passes_a_list():
    pages = [jobs.fetch.node()(url=str(number)) for number in range(3)]

    assert last(*pages, jobs.report.node()(pages=pages)).values_from == {"pages": (0, 1, 2)}
    assert last(*pages, jobs.report.node()(pages=(pages[2].value, pages[0].value))).values_from == {"pages": (2, 0)}
    node = last(*pages, jobs.count_outcomes.node()(outcomes=[page.result for page in pages]))
    assert (node.args_from, node.waits_for) == ({"outcomes": (0, 1, 2)}, (0, 1, 2))


def test_values_from_and_args_from_name_the_sources_of_arguments():
    page = jobs.fetch.node()(url="x")

    assert last(page, jobs.save.node(waits_for=[page], values_from={"data": page})()).values_from == {"data": 0}
    assert last(page, jobs.check_outcome.node(waits_for=page, args_from={"outcome": page})()).args_from == {
        "outcome": 0
    }
    assert last(page, jobs.check_outcome.node(waits_for=page, args_from={"outcome": page.result})()).args_from == {
        "outcome": 0
    }


def test_a_flow_makes_a_context_source_a_dependency():
    page = jobs.fetch.node()(url="x")
    save = jobs.with_workflow_context.node(workflow_ctx_from=[page])()

    assert last(page >> save).ctx_from == (0,)


def test_the_engine_supplies_context_parameters():
    page = jobs.fetch.node()(url="x")

    assert last(page, jobs.with_workflow_context.node(waits_for=page, workflow_ctx_from=page)(note="x")).ctx_from == (
        0,
    )
    assert last(jobs.with_workflow_context.node(workflow_ctx_from=[])()).ctx_from == ()
    assert last(page).ctx_from is None
    assert last(jobs.with_workflow_meta.node()()).kwargs == {}
    assert last(jobs.with_context.node()(data="x")).kwargs == {"data": "x"}


def test_a_task_with_kwargs_accepts_any_keyword():
    page = jobs.fetch.node()(url="x")

    node = last(page, jobs.anything.node()(a=1, b=page))

    assert (node.kwargs, node.values_from) == ({"a": 1}, {"b": 0})


def test_a_blueprint_holds_the_options_of_a_node():
    a, b = jobs.nothing.node()(), jobs.nothing.node()()

    node = last(
        a,
        b,
        jobs.nothing.node(
            node_id="c",
            waits_for=[a, b],
            join="quorum",
            min_success=2,
            allow_failed_deps=True,
            run_when=jobs.is_wanted,
            skip_when=jobs.is_wanted,
        )(),
    )

    assert (node.node_id, node.waits_for, node.join, node.min_success) == ("c", (0, 1), "quorum", 2)
    assert (node.allow_failed_deps, node.run_when) == (True, "tests.workflows.jobs.is_wanted")
    assert node.skip_when == node.run_when
    assert last(a, jobs.nothing.node(waits_for=a, join=Join.ANY)()).join == "any"


@pytest.mark.django_db
def test_a_node_has_the_same_columns_as_a_sent_task():
    options = {
        "queue_name": "fast",
        "priority": -3,
        "timeout": 5,
        "retention": {"completed": "7d", "failed": 0},
        "metadata": {"team": "a"},
        "good_until": TOMORROW,
        "retry_policy": RetryPolicy.exponential(auto_retry_for=["DOWN"]),
    }

    for task, own in ((jobs.slow, {}), (jobs.slow, options), (jobs.afetch, {}), (jobs.fetch, {"timeout": None})):
        row = Task.objects.get(pk=task.with_options(**own).send(url="x").id)
        node = last(task.node(**own)(url="x"))
        for column in (
            *("task_name", "backend", "queue_name", "priority", "is_async", "typed_payload", "max_retries"),
            *("timeout", "retention", "retention_by_state", "good_until", "metadata"),
        ):
            assert getattr(node, column) == getattr(row, column), column
        assert node.kwargs == row.kwargs
        assert json.loads(json.dumps(node.retry_policy)) == row.retry_policy


def test_node_options_come_from_the_node_then_the_workflow_then_the_task():
    node, own = jobs.slow.node()(url="x"), jobs.slow.node(queue_name="fast", priority=1, good_until=None)(url="x")

    first, second = blueprint_of(Workflow("x", [node, own], queue_name="w", priority=9, good_until=TOMORROW)).nodes

    assert (first.queue_name, first.priority, first.good_until, first.timeout) == ("w", 9, TOMORROW, 30)
    assert (second.queue_name, second.priority, second.good_until) == ("fast", 1, None)
    alone = last(node)
    assert (alone.queue_name, alone.priority, alone.good_until) == ("slow", 7, None)


def test_a_blueprint_describes_a_map():
    urls, other = jobs.links.node()(page="x"), jobs.count.node()()

    node = last(urls, jobs.fetch.map(over=urls))
    full = last(urls, other, jobs.fetch.map(over=urls, param="url", kwargs={"tries": other}, timeout=5, node_id="m"))

    assert (node.kind, node.over_index, node.param, node.waits_for, node.kwargs) == ("map", 0, "url", (0,), {})
    assert (full.node_id, full.timeout, full.values_from, full.waits_for) == ("m", 5, {"tries": 1}, (1, 0))
    by_default = last(urls, jobs.with_context.map(over=urls))
    assert by_default.param == "data"


def test_a_map_can_run_over_another_map_or_an_event():
    first = jobs.links.map(over=wait_for_event("pages"), param="page")

    assert last(first.over, first, jobs.unhinted.map(over=first)).over_index == 1


@pytest.mark.parametrize(
    ("until", "seconds", "moment"),
    [(5, 5.0, None), (timedelta(hours=1), 3600.0, None), (0, 0.0, None), (TOMORROW, None, TOMORROW)],
)
def test_a_blueprint_describes_a_sleep(until, seconds, moment):
    page = jobs.fetch.node()(url="x")

    node = last(page, sleep(until, node_id="nap", waits_for=page), queue_name="w", priority=4)

    assert (node.kind, node.node_id, node.seconds, node.until) == ("sleep", "nap", seconds, moment)
    assert (node.task_name, node.queue_name, node.priority, node.backend) == (None, "w", 4, "default")


@pytest.mark.parametrize(("timeout", "seconds"), [(None, None), (5, 5.0), (timedelta(minutes=1), 60.0)])
def test_a_blueprint_describes_an_event(timeout, seconds):
    node = last(wait_for_event("approved", timeout))

    assert (node.kind, node.event_name, node.event_timeout, node.task_name) == ("event", "approved", seconds, None)
    event = wait_for_event("approved")
    assert last(event, jobs.unhinted.node()(value=event)).values_from == {"value": 0}


def test_nodes_are_frozen_and_compare_by_identity():
    one, other = jobs.fetch.node()(url="x"), jobs.fetch.node()(url="x")

    assert one != other
    assert len({one, other, one}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.node_id = "x"


def test_a_workflow_copies_its_input_and_is_frozen():
    table = {"name": "pages"}
    nodes = [jobs.unhinted.node()(value=table)]
    workflow = Workflow("import", nodes)

    table["name"] = "changed"
    nodes.clear()

    assert blueprint_of(workflow).nodes[0].kwargs == {"value": {"name": "pages"}}
    with pytest.raises(AttributeError, match="can't be changed"):
        workflow.anything = 1
    with pytest.raises(AttributeError, match="can't be changed"):
        workflow._blueprint = None


def test_a_node_key_holds_the_id_of_its_node():
    node, named = jobs.fetch.node()(url="x"), jobs.fetch.node(node_id="named")(url="x")

    assert named.key == NodeKey("named")
    assert Workflow("import", [named, node]).key(node) == NodeKey("import:1")
    with pytest.raises(ValueError, match=r"has no node_id of its own; Workflow.key\(node\) returns"):
        node.key  # noqa: B018
