"""Any value in any place builds a workflow or raises InvalidWorkflow, and nothing else."""

import datetime
import math

import pytest

from horsies_django import (
    InvalidWorkflow,
    Join,
    NodeKey,
    SuccessCase,
    SuccessPolicy,
    Workflow,
    WorkflowDefinition,
    sleep,
    wait_for_event,
)
from horsies_django.enqueue.node_factories import StepOptions, SubWorkflowNodeOptions, TaskNodeOptions
from horsies_django.workflows.definition_registry import DefinitionOptions
from horsies_django.workflows.workflow import CopyKeywords
from tests.workflows import jobs

pytestmark = pytest.mark.once

PAGE = jobs.fetch.node(node_id="page")(url="x")
JUNK = [
    *(None, True, 0, -1, 10**30, 1.5, math.nan, math.inf, "", "a", "a\0", "\ud800", "x" * 10_000, b"a", object(), len),
    *([], [1], (), {}, {"a": 1}, {1: 2}, {"value": None}, {1, 2}, [[]], {"value": [PAGE, 1]}, {"value": PAGE.result}),
    *(PAGE, [PAGE], [PAGE, PAGE], {"value": PAGE}, {"value": [PAGE]}, PAGE >> PAGE, NodeKey("page"), NodeKey(5)),
    *(jobs.fetch, jobs.fetch.node(), Workflow, Join, Join.ANY, datetime.timedelta(days=-1), datetime.datetime.max),
    *(SuccessPolicy(5), SuccessPolicy([SuccessCase(5, 5)]), SuccessCase([]), lambda: None, iter([PAGE]), range(3)),
]


class Plain(WorkflowDefinition):
    only = jobs.nothing.node()()

    class Meta:
        definition_key = "tests.junk.plain"


def build_or_reject(build, *args, **options):
    """Build something; an InvalidWorkflow must describe each mistake."""
    mistakes = "none"
    try:
        build(*args, **options).blueprint()
    except InvalidWorkflow as error:
        mistakes = "".join(map(str, error.mistakes)) and str(error)
    assert mistakes


def build(*parts, **options):
    build_or_reject(Workflow, "junk", [PAGE, *parts], **options)


@pytest.mark.parametrize("option", sorted(TaskNodeOptions.__optional_keys__))
def test_any_value_as_a_node_option_builds_or_raises_invalid_workflow(option):
    for value in JUNK:
        build(jobs.unhinted.node(**{option: value})(value=1))
        build(jobs.unhinted.node(**{option: value})())
        build(jobs.with_workflow_context.map(over=PAGE, **{option: value}))


@pytest.mark.parametrize("option", sorted(SubWorkflowNodeOptions.__optional_keys__))
def test_any_value_as_a_subworkflow_option_builds_or_raises_invalid_workflow(option):
    for value in JUNK:
        build(Plain.node(**{option: value})())


@pytest.mark.parametrize("option", sorted(StepOptions.__optional_keys__))
def test_any_value_as_a_sleep_or_event_option_builds_or_raises_invalid_workflow(option):
    for value in JUNK:
        build(sleep(1, **{option: value}), wait_for_event("a", **{option: value}))


def test_any_value_as_a_node_argument_builds_or_raises_invalid_workflow():
    for value in JUNK:
        build(jobs.unhinted.node()(value=value))
        build(jobs.fetch.node()(url=value, tries=value))
        build(jobs.check_outcome.node()(value))
        build(jobs.report.node()(pages=[value, PAGE]))
        build(jobs.unhinted.map(over=value, param=value, kwargs=value))
        build(sleep(value), wait_for_event(value, timeout=value))
        build(Plain.node()(value, value=value))


@pytest.mark.parametrize("option", sorted(CopyKeywords.__optional_keys__ - {"name"}))
def test_any_value_as_a_workflow_option_builds_or_raises_invalid_workflow(option):
    for value in JUNK:
        build(**{option: value})


def test_any_value_as_name_or_nodes_builds_or_raises_invalid_workflow():
    for value in JUNK:
        for name, nodes in ((value, [PAGE]), ("junk", value), ("junk", {"a": value}), ("junk", [value])):
            build_or_reject(Workflow, name, nodes)


@pytest.mark.parametrize("option", list(DefinitionOptions.__dataclass_fields__))
def test_any_value_as_a_meta_option_builds_or_raises_invalid_workflow(option):
    for value in JUNK:
        meta = {"definition_key": "tests.junk.other", option: value}
        definition = type("Junk", (WorkflowDefinition,), {"only": PAGE, "Meta": type("Meta", (), meta)})
        build_or_reject(definition.build)
        build(definition.node()())
