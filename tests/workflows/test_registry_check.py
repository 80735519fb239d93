"""``manage.py check`` builds each registered definition and builder (HRS-027 … HRS-030)."""

import sys
import types

import pytest
from django.core.checks.registry import registry

from horsies_django import TaskStatus, Workflow, WorkflowDefinition, workflow_builder
from horsies_django.checks import check_workflows
from horsies_django.models import Task
from horsies_django.workflows.registry_check import find_errors
from tests.jobs import tasks as plain_jobs
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of


def mistakes():
    return [(str(mistake.code), mistake) for mistake in find_errors()]


def codes():
    return [code for code, _ in mistakes()]


def test_the_definitions_of_the_tests_pass_the_check():
    assert codes() == []


def test_check_reports_each_mistake_of_a_definition_with_a_hint():
    class Broken(WorkflowDefinition):
        fetch = jobs.fetch.node()(uri="x")

        class Meta:
            definition_key = "broken"

    messages = check_workflows()

    assert check_workflows in registry.get_checks()
    assert {message.id for message in messages} == {"horsies.E004"}
    assert [message.msg[:7] for message in messages] == ["HRS-019", "HRS-020"]
    assert all("workflow 'Broken', node 'fetch'" in message.msg and message.hint for message in messages)


def test_check_builds_each_case_of_a_definition_and_skips_one_without_cases():
    class Daily(WorkflowDefinition):
        class Meta:
            definition_key = "daily"
            cases = [{"table": "x"}, {"table": 5}, {"month": 1}, {"table": 5}]

        @classmethod
        def build_with(cls, table):
            return Workflow("daily", [jobs.save.node(node_id="s")(data="x", table=table)])

    class Uncased(WorkflowDefinition):
        class Meta:
            definition_key = "uncased"

        @classmethod
        def build_with(cls, day):
            raise AssertionError("it is not built")

    assert codes() == ["HRS-046", "HRS-028"]


def test_hrs_027_a_builder_that_needs_arguments_and_has_no_cases():
    @workflow_builder
    def build(day):
        raise AssertionError("it is not called")

    @workflow_builder
    def build_without(day="x"):
        return Workflow("w", [jobs.nothing.node()()])

    ((code, mistake),) = mistakes()

    assert code == "HRS-027"
    assert "it takes (day) and has no cases" in mistake.problem


@pytest.mark.parametrize("cases", [[{"month": 1}], [5], [{}]])
def test_hrs_028_a_case_that_the_builder_does_not_take(cases):
    @workflow_builder(cases=cases)
    def build(day):
        raise AssertionError("it is not called")

    assert codes() == ["HRS-028"]


@pytest.mark.parametrize("cases", [5, "x", {"day": 1}])
def test_hrs_028_cases_that_are_not_a_list(cases):
    @workflow_builder(cases=cases)
    def build(day="x"):
        raise AssertionError("it is not called")

    class Daily(WorkflowDefinition):
        only = jobs.nothing.node()()

        class Meta:
            definition_key = "daily"

    Daily.Meta.cases = cases

    class Other(Daily):
        class Meta(Daily.Meta):
            definition_key = "other"

    assert codes() == ["HRS-028", "HRS-028"]


def test_hrs_029_a_builder_that_raises_or_returns_something_else():
    @workflow_builder(cases=[{"what": "raise"}, {"what": "none"}, {"what": "workflow"}, {"what": "mistake"}])
    def build(what):
        if what == "raise":
            raise ZeroDivisionError("no")
        if what == "mistake":
            return Workflow("w", [jobs.fetch.node()(url=5)])
        return Workflow("w", [jobs.nothing.node()()]) if what == "workflow" else None

    (first, raised), (second, returned), (third, _) = mistakes()

    assert (first, second, third) == ("HRS-029", "HRS-029", "HRS-046")
    assert "case 0, {'what': 'raise'}, raised ZeroDivisionError('no')" in raised.problem
    assert "case 1, {'what': 'none'}, returned None" in returned.problem


def test_hrs_030_a_public_function_that_returns_a_workflow_but_is_not_a_builder():
    module = types.ModuleType("tests.workflows.loose")
    source = """
from horsies_django import Workflow, workflow_builder
from tests.workflows.conftest import blueprint_of
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of

def build() -> Workflow: ...
def build_typed() -> Workflow[str]: ...
def _private() -> Workflow: ...
def other() -> str: ...

@workflow_builder
def decorated() -> Workflow:
    return Workflow("w", [jobs.nothing.node()()])
"""
    sys.modules[module.__name__] = module
    try:
        exec(source, vars(module))
        problems = [mistake.problem for code, mistake in mistakes() if code == "HRS-030"]
    finally:
        del sys.modules[module.__name__]

    assert problems == [
        f"tests.workflows.loose.{name} returns a Workflow; allowed: with @workflow_builder."
        for name in ("build", "build_typed")
    ]


def test_a_builder_can_still_be_called_as_a_function():
    @workflow_builder(cases=[{"day": "x"}])
    def build(day: str) -> Workflow:
        return Workflow("w", [jobs.fetch.node()(url=day)])

    assert blueprint_of(build(day="y")).nodes[0].kwargs == {"url": "y"}


def test_check_validates_the_sends_of_a_builder_without_sending(db):
    sent = []

    @workflow_builder
    def build():
        sent.append(plain_jobs.add.send(a=1))
        sent.append(plain_jobs.add.enqueue(1))
        sent.extend(plain_jobs.add.send_many([{"a": 1}, {"a": 2}]))
        sent.append(plain_jobs.add.with_options(unique_key="once").send(a=1))
        return Workflow("w", [jobs.nothing.node()()])

    @workflow_builder
    def build_badly():
        plain_jobs.add.send(c=1)

    assert codes() == ["HRS-029"]
    assert len(sent) == 5
    assert not Task.objects.exists()
    assert plain_jobs.add.send(a=1).status() == TaskStatus.PENDING


def test_check_does_not_query_the_database(django_db_blocker):
    @workflow_builder
    def build():
        plain_jobs.add.send(a=1)
        return Workflow("w", [jobs.nothing.node()()])

    with django_db_blocker.block():
        assert codes() == []
