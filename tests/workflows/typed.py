"""Typed workflows: mypy checks this file, and a test builds the workflows.

Each ``ignore`` marks an error that mypy must find, because mypy also reports an unused ``ignore``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from horsies_django import (
    Join,
    MapNode,
    NodeKey,
    OnError,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskContext,
    TaskError,
    TaskNode,
    TaskResult,
    Workflow,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowMeta,
    sleep,
    task,
    together,
    wait_for_event,
    workflow_builder,
)


@task
def fetch(url: str, tries: int = 3) -> str:
    return url * tries


@task
async def links(page: str) -> list[str]:
    return page.split()


@task
def checked(url: str) -> TaskResult[int, TaskError[Any]]:
    return TaskResult(ok=len(url))


@task(takes_context=True)
def save(context: TaskContext, data: str) -> bool:
    return bool(data)


@task
def report(pages: list[str]) -> str:
    return " ".join(pages)


@task
def look(*, workflow_ctx: WorkflowContext | None = None, workflow_meta: WorkflowMeta | None = None) -> str:
    assert workflow_ctx is not None
    assert workflow_meta is not None
    return f"{workflow_meta.node_id} {workflow_ctx.result_for('page').is_ok()}"


@task
def is_ok(outcome: TaskResult[str, TaskError[Any]]) -> bool:
    return outcome.is_ok()


page = fetch.node(node_id="page", timeout=30)(url="https://x")
found = links.node()(page=page.value)
size = checked.node()(url="https://x")
stored = save.node(waits_for=[size])(data=page.value)
pages = fetch.map(over=found, param="url")
summary = report.node(join=Join.ANY, allow_failed_deps=True)(pages=[page.value, page.value])
outcome = is_ok.node()(outcome=page.result)
context_reader = look.node(waits_for=[page], workflow_ctx_from=[page])()

assert_type(page, TaskNode[str])
assert_type(found, TaskNode[list[str]])
assert_type(size, TaskNode[int])
assert_type(stored, TaskNode[bool])
assert_type(pages, MapNode[str])
assert_type(pages.value, list[str])
assert_type(page.key, NodeKey[str])

whole = Workflow("typed", [page >> [found, size] >> stored, pages, summary, outcome, context_reader], output=summary)
assert_type(whole, Workflow[str])
assert_type(whole.key(size), NodeKey[int])
paused = Workflow(
    "typed",
    [together(page, size) >> [stored, outcome] >> sleep(timedelta(hours=1)) >> wait_for_event("go", timeout=60)],
    on_error=OnError.PAUSE,
    success_policy=SuccessPolicy([SuccessCase(required=[stored], optional=["page", NodeKey[str]("page")])]),
)


def handles(handle: WorkflowHandle[str], ctx: WorkflowContext) -> None:
    """Types of the results of a run. A node that is named by its id has any type."""
    assert_type(handle.get(), TaskResult[str, TaskError[Any]])
    assert_type(handle.value(), str)
    assert_type(handle.result_for(size), TaskResult[int, TaskError[Any]])
    assert_type(handle.result_for(NodeKey[int]("size")), TaskResult[int, TaskError[Any]])
    assert_type(handle.result_for("size"), TaskResult[Any, TaskError[Any]])
    assert_type(ctx.result_for(size), TaskResult[int, TaskError[Any]])
    assert_type(ctx.result_for("size"), TaskResult[Any, TaskError[Any]])


def mistakes() -> None:
    """Mistakes that a type checker finds."""
    fetch.node(tiemout=30)  # type: ignore[call-arg]
    fetch.node()(uri="https://x")  # type: ignore[call-arg]
    fetch.node()()  # type: ignore[call-arg]
    save.node()(data=size.value)  # type: ignore[arg-type]
    is_ok.node()(outcome=page.value)  # type: ignore[arg-type]
    Workflow("typed", [page, 5])  # type: ignore[list-item]
    Workflow("typed", page, on_eror=OnError.FAIL)  # type: ignore[call-overload]
    page >> 5  # type: ignore[operator]


class Import(WorkflowDefinition[bool]):
    page = fetch.node()(url="https://x")
    stored = save.node()(data=page.value)

    class Meta:
        definition_key = "tests.typed.import"
        output = "stored"


class Daily(WorkflowDefinition[str]):
    class Meta:
        definition_key = "tests.typed.daily"
        cases = [{"day": "2026-01-01"}]

    @classmethod
    def build_with(cls, *, day: str) -> Workflow[str]:
        page = fetch.node()(url=day)
        return Workflow("daily", page, output=page)


@workflow_builder(cases=[{"day": "2026-01-01"}])
def build_day(day: str) -> Workflow[str]:
    return Daily.build_with(day=day)


assert_type(Import.build(), Workflow[bool])
assert_type(Daily.node()(day="2026-01-01"), SubWorkflowNode[str])
assert_type(build_day("2026-01-01"), Workflow[str])
nested = Workflow("nested", [Import.node()() >> Daily.node()(day="2026-01-01")])
