"""What the schedules of the tests send."""

from __future__ import annotations

from typing import Any

from horsies_django import RetryPolicy, Workflow, WorkflowDefinition, task


@task(timeout=30, priority=3, retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["*"]))
def report(day: str = "today", copies: int = 1) -> str:
    return day * copies


class Import(WorkflowDefinition[Any]):
    """One node, with a parameter."""

    @classmethod
    def build_with(cls, day: str = "today") -> Workflow[Any]:
        return Workflow("import", [report.node()(day=day)])

    class Meta:
        definition_key = "tests.schedules.import"


class Refusing(WorkflowDefinition[Any]):
    """One that can't be built today: the check, which builds it too, finds it right."""

    @classmethod
    def build_with(cls, source: str = "shop") -> Workflow[Any]:
        if source == "none":
            raise RuntimeError("no source today")
        return Workflow("refusing", [report.node()()])

    class Meta:
        definition_key = "tests.schedules.refusing"
