"""Tasks and workflows that the schedules of the tests send."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connection

from horsies_django import Gather, RetryPolicy, TaskContext, Unique, Workflow, WorkflowDefinition, task


@task(timeout=30, priority=3, retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["*"]))
def report(day: str = "today", copies: int = 1) -> str:
    return day * copies


@task(unique=Unique(on_conflict="raise"))
def alone() -> None: ...


@task(gather=Gather("all", max_size=2, max_delay=3_600))
def collect(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items


@task(takes_context=True)
def slot(context: TaskContext) -> str | None:
    return None if context.scheduled_for is None else context.scheduled_for.isoformat()


class Slotted(WorkflowDefinition[Any]):
    """One node, which returns its slot."""

    @classmethod
    def build_with(cls) -> Workflow[Any]:
        return Workflow("slotted", [slot.node()()], unique_key="slotted")

    class Meta:
        definition_key = "tests.schedules.slotted"


class Import(WorkflowDefinition[Any]):
    """One node, with a parameter."""

    @classmethod
    def build_with(cls, day: str = "today") -> Workflow[Any]:
        return Workflow("import", [report.node()(day=day)])

    class Meta:
        definition_key = "tests.schedules.import"


class Refusing(WorkflowDefinition[Any]):
    """A workflow that some arguments keep from being built; with the defaults the check can build it."""

    @classmethod
    def build_with(cls, source: str = "shop") -> Workflow[Any]:
        if source == "none":
            raise RuntimeError("no source today")
        return Workflow("refusing", [report.node()()])

    class Meta:
        definition_key = "tests.schedules.refusing"


class Asking(WorkflowDefinition[Any]):
    """A workflow whose builder may make a query that fails, and catches the error."""

    was_in_a_transaction: bool | None = None

    @classmethod
    def build_with(cls, asks: bool = False) -> Workflow[Any]:
        cls.was_in_a_transaction = connection.in_atomic_block
        if asks:
            with suppress(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT number FROM of_no_table")
        return Workflow("asking", [report.node()()])

    class Meta:
        definition_key = "tests.schedules.asking"
