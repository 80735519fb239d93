"""The ``WorkflowContext`` that a body gets."""

import pytest

from horsies_django import NodeKey, SubWorkflowSummary, TaskResult, WorkflowContext, WorkflowStatus
from horsies_django.core.ids import uuid7
from tests.workflows import jobs

PAGE = jobs.fetch.node(node_id="page")(url="x")
UNNAMED = jobs.fetch.node()(url="x")


@pytest.fixture
def context():
    return WorkflowContext(
        workflow_id=uuid7(),
        task_index=3,
        task_name="tests.workflows.jobs.with_workflow_context",
        node_id="last",
        results={"page": TaskResult(ok="text"), "import:1": TaskResult(ok="other")},
        summaries={"daily": SubWorkflowSummary(workflow_id=uuid7(), status=WorkflowStatus.COMPLETED, total=2)},
        node_ids={UNNAMED: "import:1"},
    )


@pytest.mark.parametrize("ref", [PAGE, PAGE.key, NodeKey("page"), "page"])
def test_a_result_is_found_by_node_by_key_and_by_id(context, ref):
    assert context.has_result(ref)
    assert context.result_for(ref) == TaskResult(ok="text")


def test_the_context_finds_a_node_without_an_explicit_id(context):
    assert context.result_for(UNNAMED) == TaskResult(ok="other")
    with pytest.raises(ValueError, match="has no node_id of its own"):
        context.result_for(jobs.nothing.node()())


def test_an_unlisted_node_raises_key_error(context):
    assert not context.has_result("daily")
    with pytest.raises(KeyError, match="'daily' is not in the workflow_ctx_from of node 'last'; there are: 'page'"):
        context.result_for("daily")
    with pytest.raises(KeyError, match="there are: 'daily'"):
        context.summary_for("page")


def test_the_context_has_the_summary_of_a_subworkflow(context):
    assert context.has_summary("daily")
    assert context.summary_for("daily").total == 2
