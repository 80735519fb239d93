"""Tasks and conditions for tests that build workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horsies_django import (
    RetryPolicy,
    TaskContext,
    TaskError,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
    task,
)


@task
def fetch(url: str, tries: int = 3) -> str:
    return f"{url} {tries}"


@task
def links(page: str) -> list[str]:
    return page.split()


@task
def save(data: str, table: str = "pages") -> int:
    return len(data)


@task
def count(number: int = 0) -> int:
    return number


@task
def lookup(key: int) -> dict[str, Any]:
    return {"key": key}


@task
def report(pages: Sequence[str], title: str = "") -> str:
    return title + " ".join(pages)


@task
def check_outcome(outcome: TaskResult[str, TaskError[Any]]) -> bool:
    return outcome.is_ok()


@task
def count_outcomes(outcomes: list[TaskResult[str, TaskError[Any]]]) -> int:
    return len(outcomes)


@task
def with_workflow_context(workflow_ctx: WorkflowContext, note: str = "") -> str:
    return note


@task
def with_workflow_meta(workflow_meta: WorkflowMeta) -> str:
    return workflow_meta.node_id


@task(takes_context=True)
def with_context(context: TaskContext, data: str) -> str:
    return data


@task
async def afetch(url: str) -> list[str]:
    return [url]


@task
def checked(url: str) -> TaskResult[int, TaskError[Any]]:
    return TaskResult(ok=len(url))


@task
def anything(**kwargs):
    return kwargs


@task
def unhinted(value):
    return value


@task
def nothing() -> None:
    """Do nothing."""


@task(queue_name="slow", priority=7, timeout=30, retry_policy=RetryPolicy.fixed([60], auto_retry_for=["DOWN"]))
def slow(url: str) -> str:
    return url


def is_wanted(ctx: WorkflowContext) -> bool:
    return ctx.has_result("fetch")


def needs_more(ctx: WorkflowContext, other: int) -> bool:
    return bool(other)


async def is_wanted_later(ctx: WorkflowContext) -> bool:
    return True


is_alias = lambda ctx: True  # noqa: E731
