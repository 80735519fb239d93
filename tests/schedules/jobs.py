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
    """One that can't be built."""

    @classmethod
    def build_with(cls) -> Workflow[Any]:
        raise RuntimeError("no source today")

    class Meta:
        definition_key = "tests.schedules.refusing"
