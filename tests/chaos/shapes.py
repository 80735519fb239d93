"""The workflows of the chaos tests: their nodes are its tasks, their names describe their shapes."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from horsies_django import (
    Join,
    OnError,
    RetryPolicy,
    TaskError,
    TaskResult,
    Workflow,
    WorkflowContext,
    WorkflowDefinition,
    sleep,
    task,
    wait_for_event,
    workflow_builder,
)
from tests.chaos import jobs, ledger

_CASE = [{"key": "any", "seconds": 0.1}]

#: The name of the workflow that ends PAUSED.
PAUSING = "pausing"


@task
def broken(key: str) -> TaskResult[str, TaskError[Any]]:
    """Fail, always."""
    ledger.note(key)
    return TaskResult(err=TaskError(error_code="BROKEN", message="as always"))


@task(retry_policy=RetryPolicy.fixed(jobs.MANY_RETRIES, auto_retry_for=["WORKER_CRASHED", "FLAKY"], jitter=False))
def flaky(key: str) -> TaskResult[str, TaskError[Any]]:
    """Fail the first time."""
    ledger.note(key)
    if ledger.effects()[key] < 2:
        return TaskResult(err=TaskError(error_code="FLAKY", message="not at once"))
    return TaskResult(ok=key)


@task(retry_policy=RetryPolicy.fixed(jobs.MANY_RETRIES, auto_retry_for=["WORKER_CRASHED"], jitter=False))
def numbers() -> list[int]:
    """Return the items of a map."""
    return list(range(7))


@task(retry_policy=RetryPolicy.fixed(jobs.MANY_RETRIES, auto_retry_for=["WORKER_CRASHED"], jitter=False))
def item_at_least_once(item: int, key: str) -> str:
    """Note its item."""
    ledger.note(f"{key}[{item}]")
    return f"{key}[{item}]"


@task(retry_policy=RetryPolicy.fixed(jobs.MANY_RETRIES, auto_retry_for=["WORKER_CRASHED"], jitter=False))
def check_values(key: str, values: list[str]) -> str:
    """Note its key, if all values are keys."""
    assert all(value.startswith("w") for value in values), values
    ledger.note(key)
    return key


@task(retry_policy=RetryPolicy.fixed(jobs.MANY_RETRIES, auto_retry_for=["WORKER_CRASHED"], jitter=False))
async def acheck_values(key: str, values: list[str]) -> str:
    """Do the same in a coroutine."""
    assert all(value.startswith("w") for value in values), values
    ledger.note(key)
    return key


def yes(ctx: WorkflowContext) -> bool:
    """Meet the condition."""
    return True


class TwoNodes(WorkflowDefinition[str]):
    """Two nodes, whose keys are new each time that the workflow is built."""

    class Meta:
        definition_key = "tests.chaos.two_nodes"
        cases = _CASE

    @classmethod
    def build_with(cls, *, key: str, seconds: float) -> Workflow[str]:
        key = f"{key}.{uuid4().hex[:8]}"
        first = jobs.at_most_once.node()(key=f"{key}.first", seconds=seconds)
        second = jobs.exactly_once.node(waits_for=[first])(key=f"{key}.second", seconds=seconds)
        return Workflow("below", [first, second], output=second)


@workflow_builder(cases=_CASE)
def chain(key: str, seconds: float) -> Workflow[Any]:
    """Nodes that run one after another."""
    bodies = [jobs.at_least_once, jobs.exactly_once, jobs.async_at_least_once, jobs.at_most_once, jobs.exactly_once]
    nodes: list[Any] = []
    for index, body in enumerate(bodies):
        nodes.append(body.node(waits_for=nodes[-1:])(key=f"{key}.{index}", seconds=seconds))
    return Workflow("chain", [*nodes, flaky.node(waits_for=nodes[-1:])(key=f"{key}.flaky")])


@workflow_builder(cases=_CASE)
def diamond(key: str, seconds: float) -> Workflow[Any]:
    """Two branches that end at about the same time."""
    top = jobs.exactly_once.node()(key=f"{key}.top", seconds=0.0)
    left = jobs.at_least_once.node(waits_for=[top])(key=f"{key}.left", seconds=seconds)
    right = jobs.async_at_most_once.node(waits_for=[top])(key=f"{key}.right", seconds=seconds)
    end = jobs.exactly_once.node(waits_for=[left, right], allow_failed_deps=True)(key=f"{key}.end", seconds=0.0)
    both = check_values.node(join=Join.QUORUM, min_success=1)(key=f"{key}.both", values=[left, right])
    also = acheck_values.node(allow_failed_deps=True)(key=f"{key}.also", values=[both, end])
    return Workflow("diamond", [top, left, right, end, both, also])


@workflow_builder(cases=_CASE)
def fan(key: str, seconds: float) -> Workflow[Any]:
    """A map, and several nodes beside it, most of which have to complete."""
    items = numbers.node()()
    each = item_at_least_once.map(over=items, param="item", kwargs={"key": f"{key}.each"})
    several = [jobs.at_most_once.node()(key=f"{key}.{index}", seconds=seconds) for index in range(5)]
    most = jobs.exactly_once.node(waits_for=several, join=Join.QUORUM, min_success=4)(key=f"{key}.most", seconds=0.0)
    some = jobs.exactly_once.node(waits_for=[each, *several], join=Join.ANY)(key=f"{key}.some", seconds=0.0)
    last = jobs.exactly_once.node(waits_for=[each, most])(key=f"{key}.last", seconds=seconds)
    return Workflow("fan", [items, each, *several, most, some, last])


@workflow_builder(cases=_CASE)
def nested(key: str, seconds: float) -> Workflow[Any]:
    """A subworkflow that is retried if it fails, and one that is not."""
    policy = RetryPolicy.fixed([1.0] * 5, auto_retry_for=["*"], jitter=False)
    again = TwoNodes.node(retry_policy=policy)(key=f"{key}.again", seconds=seconds)
    once = TwoNodes.node()(key=f"{key}.once", seconds=seconds)
    after = jobs.exactly_once.node(waits_for=[again])(key=f"{key}.after", seconds=0.0)
    end = jobs.exactly_once.node(waits_for=[after, once], allow_failed_deps=True)(key=f"{key}.end", seconds=0.0)
    return Workflow("nested", [again, once, after, end])


@workflow_builder(cases=_CASE)
def waiting(key: str, seconds: float) -> Workflow[Any]:
    """Conditions, a sleep, and an event that never comes."""
    nap = sleep(seconds)
    never = wait_for_event("never", timeout=seconds)
    conditional = jobs.exactly_once.node(run_when=yes, waits_for=[nap])(key=f"{key}.conditional", seconds=seconds)
    skipped = jobs.at_least_once.node(skip_when=yes)(key=f"{key}.skipped", seconds=0.0)
    end = jobs.exactly_once.node(waits_for=[conditional, skipped])(key=f"{key}.end", seconds=0.0)
    late = jobs.at_least_once.node(waits_for=[never], allow_failed_deps=True)(key=f"{key}.late", seconds=0.0)
    return Workflow("waiting", [nap, never, conditional, skipped, end, late])


@workflow_builder(cases=_CASE)
def pausing(key: str, seconds: float) -> Workflow[Any]:
    """A node that fails, with nodes beside and after it."""
    beside = jobs.exactly_once.node()(key=f"{key}.beside", seconds=seconds)
    bad = broken.node()(key=f"{key}.bad")
    after = jobs.exactly_once.node(waits_for=[bad], allow_failed_deps=True)(key=f"{key}.after", seconds=0.0)
    below = TwoNodes.node(waits_for=[beside])(key=f"{key}.below", seconds=seconds)
    return Workflow(PAUSING, [beside, bad, after, below], on_error=OnError.PAUSE)


#: All shapes.
SHAPES = [chain, diamond, fan, nested, waiting, pausing]
