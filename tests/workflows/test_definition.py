"""Definition classes, as workflows, as subworkflows and in the registry."""

import pytest

from horsies_django import OnError, RetryPolicy, SuccessCase, SuccessPolicy, Workflow, WorkflowDefinition
from horsies_django.core.workflow_errors import DefinitionErrorCode
from horsies_django.workflows.definition_registry import definition_at, definition_registry
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of, mistakes_of, only


class Import(WorkflowDefinition[int]):
    fetch = jobs.fetch.node()(url="https://x")
    store = jobs.save.node()(data=fetch)
    notify = jobs.count.node()()
    order = store >> notify

    class Meta:
        definition_key = "tests.import"
        output = "store"
        on_error = OnError.PAUSE
        success_policy = SuccessPolicy([SuccessCase(["store"])])
        priority = 4


class Daily(WorkflowDefinition[str]):
    class Meta:
        definition_key = "tests.daily"
        cases = [{"day": "2026-01-01"}]

    @classmethod
    def build_with(cls, *, day: str, tries: int = 3) -> Workflow[str]:
        page = jobs.fetch.node(node_id="page")(url=day, tries=tries)
        return Workflow(f"daily {day}", [page], output=page)


def test_class_attributes_are_nodes_and_their_names_are_the_node_ids():
    blueprint = blueprint_of(Import.build())

    assert (blueprint.name, blueprint.definition_key, blueprint.on_error) == ("Import", "tests.import", "PAUSE")
    assert [node.node_id for node in blueprint.nodes] == ["fetch", "store", "notify"]
    assert [node.waits_for for node in blueprint.nodes] == [(), (0,), (1,)]
    assert (blueprint.output_index, blueprint.success_policy) == (1, [{"required": [1], "optional": []}])
    assert {node.priority for node in blueprint.nodes} == {4}
    assert Import.build().key(Import.store).node_id == "store"


def test_build_with_takes_parameters_and_its_workflow_gets_the_key():
    workflow = Daily.build_with(day="2026-11-21")

    assert (workflow.name, blueprint_of(workflow).definition_key) == ("daily 2026-11-21", "tests.daily")
    assert blueprint_of(workflow.with_options(priority=3)).definition_key == "tests.daily"
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'day'"):
        Daily.build()
    with pytest.raises(TypeError, match="Import takes no parameters"):
        Import.build_with(day="x")


def test_build_reports_mistakes_in_meta_and_in_build_with():
    class Broken(WorkflowDefinition):
        class Meta:
            colour = "red"

        @classmethod
        def build_with(cls, day="x"):
            return Workflow("broken", [jobs.fetch.node()(uri=day)])

    found = mistakes_of(Broken.build)

    assert [str(mistake.code)[-3:] for mistake in found] == ["016", "040", "019", "020"]
    assert "Meta has colour; allowed: abstract, backend, cases, " in found[1].problem


def test_meta_can_not_set_a_deadline():
    class Late(WorkflowDefinition):
        only = jobs.nothing.node()()

        class Meta:
            definition_key = "late"
            good_until = "tomorrow"

    (mistake,) = mistakes_of(Late.build)

    assert "build().with_options(good_until=…)" in mistake.problem


def test_a_node_can_not_have_the_name_of_a_method():
    class Odd(WorkflowDefinition):
        node = jobs.nothing.node()()

        class Meta:
            definition_key = "odd"

    found = mistakes_of(Odd.build)

    assert found[0].code == DefinitionErrorCode.INVALID_NODE_ID
    assert "can't be named 'node'" in found[0].problem


def test_a_subclass_inherits_nodes_and_can_override_them():
    class Base(WorkflowDefinition):
        fetch = jobs.fetch.node()(url="x")
        notify = jobs.nothing.node()()

        class Meta:
            abstract = True

    class Longer(Base):
        notify = None
        store = jobs.save.node()(data=Base.fetch)

        class Meta:
            definition_key = "longer"

    assert Longer.build().node_ids == ("fetch", "store")
    assert Base not in definition_registry.definitions.values()


def test_one_node_in_two_definitions_has_an_id_in_each():
    page = jobs.fetch.node()(url="x")

    class One(WorkflowDefinition):
        first = page

        class Meta:
            definition_key = "one"

    class Other(WorkflowDefinition):
        second = page
        store = jobs.save.node()(data=page)

        class Meta:
            definition_key = "other"

    assert One.build().node_ids == ("first",)
    assert Other.build().node_ids == ("second", "store")


def test_a_subworkflow_is_a_node():
    page = jobs.fetch.node()(url="x")
    policy = RetryPolicy.fixed([60], auto_retry_for=["DOWN"])
    daily = Daily.node(node_id="daily", retry_policy=policy)(day=page, tries=5)
    imported = Import.node(waits_for=[daily])()

    workflow = Workflow("all", [page, daily, imported], queue_name="w")
    _, node, last = blueprint_of(workflow).nodes

    assert (node.kind, node.definition_key, node.task_name) == ("subworkflow", "tests.daily", None)
    assert (node.values_from, node.kwargs, node.waits_for) == ({"day": 0}, {"tries": 5}, (0,))
    assert (node.max_retries, node.retry_policy) == (1, policy.as_json())
    assert (last.definition_key, last.max_retries, last.queue_name) == ("tests.import", 0, "w")


def test_arguments_of_a_subworkflow_are_checked_against_build_with():
    page = jobs.count.node()()

    assert "has no parameter 'month'" in only("019", [Daily.node()(day="x", month="y")]).problem
    assert "needs 'day'" in only("020", [Daily.node()()]).problem
    assert "is 5 (int); allowed: str" in only("046", [Daily.node()(day=5)]).problem
    assert "takes str, and <TaskNode: tests.workflows.jobs.count> gives int" in (
        only("024", [page, Daily.node()(day=page)]).problem
    )
    assert "retry_policy is 5" in only("040", [Import.node(retry_policy=5)()]).problem
    inner = Import.node()()
    assert "gives int" in only("024", [inner, jobs.fetch.node()(url=inner)]).problem
    with pytest.raises(TypeError, match="unknown option queue_name"):
        Import.node(queue_name="x")


def test_definitions_are_found_by_their_key():
    assert definition_at("tests.import") is Import
    with pytest.raises(LookupError, match="'nowhere' belongs to no imported definition"):
        definition_at("nowhere")


def test_a_definition_that_is_imported_again_replaces_itself():
    def define():
        class Again(WorkflowDefinition):
            only = jobs.nothing.node()()

            class Meta:
                definition_key = "again"

        return Again

    define()
    again = define()

    assert definition_at("again") is again
    assert again.build().name == "Again"


def test_a_key_shared_by_two_definitions_finds_neither():
    class One(WorkflowDefinition):
        class Meta:
            definition_key = "twice"

    class Other(WorkflowDefinition):
        class Meta:
            definition_key = "twice"

    with pytest.raises(LookupError, match=f"belongs to {One._meta.path} and {Other._meta.path}"):
        definition_at("twice")
