"""Tasks, conditions and definitions for tests that run workflows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.exceptions import SynchronousOnlyOperation
from django.db.models.functions import Now

from horsies_django import (
    OnError,
    RetryPolicy,
    SuccessCase,
    SuccessPolicy,
    TaskContext,
    TaskError,
    TaskResult,
    Workflow,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowMeta,
    task,
    wait_for_event,
)
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.workflows.engine import repair
from horsies_django.workflows.handle import WorkflowHandle
from tests.jobs.models import Entry


@task
def echo(value: Any = None) -> Any:
    """Return the argument."""
    return value


@task
def fail(message: str = "no", code: str = "NO") -> TaskResult[Any, TaskError[Any]]:
    """Always fail."""
    return TaskResult(err=TaskError(error_code=code, message=message))


@task
def describe_arguments(**arguments: Any) -> dict[str, Any]:
    """Return the arguments, with each TaskResult as text."""
    return {name: _as_text(value) for name, value in arguments.items()}


@task
def flaky(key: str, fails: int = 0) -> TaskResult[int, TaskError[Any]]:
    """Fail in the first ``fails`` runs, and then return the number of the run."""
    Entry.objects.create(key=key)
    if (times := Entry.objects.filter(key=key).count()) <= fails:
        return TaskResult(err=TaskError(error_code="NOT_YET", message=f"{key}: time {times} of {fails}"))
    return TaskResult(ok=times)


@task
def flaky_item(item: int, key: str, fails: int = 0) -> TaskResult[int, TaskError[Any]]:
    """Fail in the first ``fails`` runs of each odd item."""
    Entry.objects.create(key=f"{key}-{item}")
    if item % 2 and Entry.objects.filter(key=f"{key}-{item}").count() <= fails:
        return TaskResult(err=TaskError(error_code="ODD", message=f"{item} is odd"))
    return TaskResult(ok=item * 10)


@task(retry_policy=RetryPolicy.fixed([1, 1, 1], auto_retry_for=["NOT_YET"], jitter=False))
def flaky_with_retries(key: str, fails: int = 0) -> TaskResult[int, TaskError[Any]]:
    """Do the same as ``flaky``, with a retry policy."""
    return flaky.func(key, fails)


@task(atomic=True, takes_context=True)
def report_atomically(context: TaskContext, key: str) -> None:
    """Create an entry in the transaction that ends the task, and report progress."""
    Entry.objects.create(key=key)
    context.progress(1, 1)


@task(atomic=True)
def write_atomically(key: str) -> str:
    """Create an entry in the transaction that ends the task."""
    Entry.objects.create(key=key)
    return key


@task
def stop(action: str, workflow_meta: WorkflowMeta) -> str:
    """Pause or cancel the task's own workflow."""
    return str(getattr(WorkflowHandle(workflow_meta.workflow_id), action)())


@task
def optional(value: Any = "nothing") -> Any:
    """Return the value, or the default."""
    return _as_text(value)


@task
def describe_outcome(outcome: TaskResult[Any, TaskError[Any]]) -> str:
    """Return an outcome as text."""
    return _as_text(outcome)


@task
def describe_error(outcome: TaskResult[Any, TaskError[Any]]) -> list[Any]:
    """Return the code and the data of an error."""
    return [outcome.err.error_code, outcome.err.data]


@task
def describe_outcomes(outcomes: list[TaskResult[Any, TaskError[Any]]]) -> list[str]:
    """Return several outcomes as text."""
    return [_as_text(outcome) for outcome in outcomes]


@task
def describe_context(workflow_ctx: WorkflowContext) -> dict[str, Any]:
    """Return the content of the context."""
    return {
        "node": workflow_ctx.node_id,
        "index": workflow_ctx.task_index,
        "workflow": str(workflow_ctx.workflow_id),
        "task": workflow_ctx.task_name,
        "results": {name: _as_text(result) for name, result in workflow_ctx.results.items()},
        "has": {name: workflow_ctx.has_result(name) for name in ("first", "second", "other")},
    }


@task
def describe_item(item: Any, one: TaskResult[Any, TaskError[Any]], workflow_ctx: WorkflowContext) -> list[Any]:
    """Return the item, and the inputs that all items share."""
    return [item, _as_text(one), _as_text(workflow_ctx.result_for("first")), workflow_ctx.node_id]


@task
def read_unlisted_result(workflow_ctx: WorkflowContext) -> Any:
    """Ask the context for a node that is not in its ``workflow_ctx_from``."""
    return workflow_ctx.result_for("other")


@task
def summarize(workflow_ctx: WorkflowContext) -> dict[str, Any]:
    """Return the summary of the subworkflow ``sub``."""
    summary = workflow_ctx.summary_for("sub")
    return {
        "status": str(summary.status),
        "counts": [summary.total, summary.completed, summary.failed, summary.skipped],
        "error": summary.error,
    }


@task
def describe_node(workflow_meta: WorkflowMeta, note: str = "") -> list[Any]:
    """Return the position of the node."""
    return [str(workflow_meta.workflow_id), workflow_meta.task_index, workflow_meta.task_name, workflow_meta.node_id]


@task
async def adescribe_node(workflow_meta: WorkflowMeta, value: Any = None) -> list[Any]:
    """Return the node id, as a coroutine."""
    return [workflow_meta.node_id, value]


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["NO"]))
def cancel_and_fail(key: str, workflow_meta: WorkflowMeta) -> TaskResult[None, TaskError[Any]]:
    """Cancel the task's own workflow, and fail with an error that the policy retries."""
    Entry.objects.create(key=key)
    WorkflowHandle[Any](workflow_meta.workflow_id).cancel()
    return TaskResult(err=TaskError(error_code="NO", message="no"))


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["NO"]))
def expire_and_fail(workflow_meta: WorkflowMeta) -> TaskResult[None, TaskError[Any]]:
    """Expire the task's own workflow, and fail with an error that the policy retries."""
    _expire(workflow_meta.workflow_id)
    return TaskResult(err=TaskError(error_code="NO", message="no"))


def _expire(workflow_id: UUID) -> None:
    WorkflowRow.objects.filter(pk=workflow_id).update(good_until=Now())
    repair.expire("default")


@task
def restart_root(workflow_meta: WorkflowMeta) -> str:
    """Cancel and retry the root workflow."""
    root = WorkflowHandle[Any](WorkflowRow.objects.get(pk=workflow_meta.workflow_id).root_id)
    return f"{root.cancel()} {root.retry()}"


@task
def cancel_and_retry(action: str, workflow_meta: WorkflowMeta) -> str:
    """Cancel and retry the task's own workflow if the action is "retry"."""
    if action == "retry":
        handle = WorkflowHandle[Any](workflow_meta.workflow_id)
        handle.cancel()
        handle.retry()
    return action


def _decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@task
@_decorated
def describe_node_decorated(workflow_meta: WorkflowMeta) -> str:
    """Return the node id, through a decorator."""
    return workflow_meta.node_id


def _as_text(value: Any) -> Any:
    if isinstance(value, TaskResult):
        return f"ok {value.ok}" if value.is_ok() else f"err {value.err.error_code}"
    return [_as_text(item) for item in value] if isinstance(value, list) else value


# Conditions.


def yes(ctx: WorkflowContext) -> bool:
    """Always hold."""
    return True


def no(ctx: WorkflowContext) -> bool:
    """Never hold."""
    return False


def first_is_large(ctx: WorkflowContext) -> bool:
    """Check the value of the node ``first``."""
    return ctx.result_for("first").ok > 10


def broken(ctx: WorkflowContext) -> bool:
    """Raise."""
    raise ValueError("a broken condition")


def pausing(ctx: WorkflowContext) -> bool:
    """Pause the workflow, and hold."""
    return WorkflowHandle(ctx.workflow_id).pause()


def cancelling(ctx: WorkflowContext) -> bool:
    """Cancel the workflow, and hold."""
    return WorkflowHandle(ctx.workflow_id).cancel()


def expiring(ctx: WorkflowContext) -> bool:
    """Expire the workflow, and hold."""
    _expire(ctx.workflow_id)
    return True


def record_evaluation(ctx: WorkflowContext) -> bool:
    """Create an entry for each evaluation."""
    Entry.objects.create(key=f"evaluated-{ctx.node_id}")
    return True


# Definitions.


class Leaf(WorkflowDefinition[int]):
    """A node that may fail, and one that returns its value."""

    class Meta:
        definition_key = "tests.running.leaf"
        cases = [{"key": "leaf"}]

    @classmethod
    def build_with(cls, *, key: str, fails: int = 0, value: Any = None) -> Workflow[Any]:
        one = flaky.node(node_id="one")(key=key, fails=fails)
        two = echo.node(node_id="two", waits_for=[one])(value=[key, value])
        return Workflow("leaf", [one, two], output=two)


class Middle(WorkflowDefinition[Any]):
    """A leaf, and a node that takes its output."""

    class Meta:
        definition_key = "tests.running.middle"
        cases = [{"key": "middle"}]

    @classmethod
    def build_with(cls, *, key: str, fails: int = 0) -> Workflow[Any]:
        leaf = Leaf.node(node_id="leaf")(key=key, fails=fails)
        after = echo.node(node_id="after")(value=leaf)
        return Workflow("middle", [leaf, after], output=after)


class Pair(WorkflowDefinition[None]):
    """Two nodes that may fail, neither of which waits for the other."""

    class Meta:
        definition_key = "tests.running.pair"
        cases = [{}]

    @classmethod
    def build_with(cls, *, fails: int = 0) -> Workflow[Any]:
        return Workflow("pair", {key: flaky.node()(key=key, fails=fails) for key in ("one", "two")})


class Silent(WorkflowDefinition[None]):
    """A workflow without an output."""

    one = echo.node()(value=1)

    class Meta:
        definition_key = "tests.running.silent"


class Broken(WorkflowDefinition[None]):
    """Raises while a worker builds it."""

    class Meta:
        definition_key = "tests.running.broken"
        cases = [{}]

    @classmethod
    def build_with(cls, *, why: str = "") -> Workflow[Any]:
        if why:
            raise RuntimeError(why)
        return Workflow("broken", [echo.node()()])


class BuiltOnce(WorkflowDefinition[Any]):
    """Fails, and can't be built again."""

    class Meta:
        definition_key = "tests.running.built-once"
        cases = [{}]

    @classmethod
    def build_with(cls, *, key: str = "") -> Workflow[Any]:
        if key and Entry.objects.filter(key=key).exists():
            raise RuntimeError("built once already")
        return Workflow("built once", [flaky.node()(key=key, fails=1)])


class Waiting(WorkflowDefinition[Any]):
    """Waits for an event."""

    class Meta:
        definition_key = "tests.running.waiting"
        output = "after"

    approval = wait_for_event("approval")
    after = echo.node()(value=approval)


class Stopping(WorkflowDefinition[Any]):
    """Pauses or cancels its parent workflow while it is built."""

    class Meta:
        definition_key = "tests.running.stopping"
        cases = [{"action": "", "workflow_id": ""}]

    @classmethod
    def build_with(cls, *, action: str, workflow_id: str) -> Workflow[Any]:
        if action:
            getattr(WorkflowHandle(workflow_id), action)()
        return Workflow("stopping", {"one": flaky.node()(key=f"stopping {action}")}, output="one")


class CancelsOwnTask(WorkflowDefinition[Any]):
    """Cancels the task that builds it."""

    class Meta:
        definition_key = "tests.running.cancels_own_task"

    @classmethod
    def build_with(cls, *, node_id: str) -> Workflow[Any]:
        Task.objects.filter(pk__in=WorkflowTask.objects.filter(node_id=node_id).values("task_id")).cancel(
            include_running=True
        )
        return Workflow("cancels-own-task", {"approval": wait_for_event("approval")}, output="approval")


class Restarting(WorkflowDefinition[str]):
    """Cancels and retries the root workflow."""

    class Meta:
        definition_key = "tests.running.restarting"
        output = "one"

    one = restart_root.node()()


class Fragile(WorkflowDefinition[Any]):
    """Pauses when its node fails."""

    class Meta:
        definition_key = "tests.running.fragile"
        cases = [{"key": "fragile"}]

    @classmethod
    def build_with(cls, *, key: str, fails: int = 1) -> Workflow[Any]:
        return Workflow("fragile", {"one": flaky.node()(key=key, fails=fails)}, output="one", on_error=OnError.PAUSE)


class Lenient(WorkflowDefinition[Any]):
    """Completes although a node fails."""

    class Meta:
        definition_key = "tests.running.lenient"
        success_policy = SuccessPolicy([SuccessCase(["good"])])

    good = echo.node()()
    bad = fail.node()()


class Informed(WorkflowDefinition[Any]):
    """Is built from the context and the outcome of an earlier node."""

    class Meta:
        definition_key = "tests.running.informed"
        cases = [{"workflow_ctx": None, "outcome": None}]

    @classmethod
    def build_with(cls, *, workflow_ctx: Any = None, outcome: Any = None) -> Workflow[Any]:
        results = {name: _as_text(result) for name, result in workflow_ctx.results.items()} if workflow_ctx else None
        return Workflow("informed", {"one": echo.node()(value=[results, _as_text(outcome)])}, output="one")


class Wide(WorkflowDefinition[Any]):
    """A workflow with a map."""

    class Meta:
        definition_key = "tests.running.wide"
        cases = [{"key": "wide"}]

    @classmethod
    def build_with(cls, *, key: str, fails: int = 0) -> Workflow[Any]:
        items = echo.node(node_id="items")(value=[1, 2, 3])
        each = flaky_item.map(over=items, param="item", kwargs={"key": key, "fails": fails}, node_id="each")
        return Workflow("wide", [items, each], output=each)


# Tasks that wait for other workflows.


@task
def wait_for_workflow(workflow_id: str) -> Any:
    """Wait for another workflow in a thread."""
    return WorkflowHandle[Any](workflow_id).value(30)


@task
async def await_workflow(workflow_id: str) -> list[Any]:
    """Await another workflow, and show that the blocking ``get()`` is refused."""
    handle = WorkflowHandle[Any](workflow_id)
    try:
        handle.get(0)
    except SynchronousOnlyOperation as error:
        return [await handle.avalue(30), type(error).__name__]
    return []


class Held(WorkflowDefinition[Any]):
    """Has a unique key, and waits for an event."""

    class Meta:
        definition_key = "tests.running.held"
        unique_key = "held"
        output = "approval"

    approval = wait_for_event("approval")


class Deep(WorkflowDefinition[int]):
    """Contains itself, ``left`` levels deep."""

    class Meta:
        definition_key = "tests.running.deep"
        cases = [{"left": 1}]

    @classmethod
    def build_with(cls, *, left: int) -> Workflow[Any]:
        end: Any = Deep.node(node_id="below")(left=left - 1) if left else echo.node(node_id="bottom")(value=0)
        count = echo.node(node_id="count")(value=end)
        return Workflow("deep", [end, count], output=count)


class Nested(WorkflowDefinition[Any]):
    """Contains only itself, ``left`` levels deep; the innermost node may fail."""

    class Meta:
        definition_key = "tests.running.nested"
        cases = [{"left": 1}]

    @classmethod
    def build_with(cls, *, left: int, is_bad: bool = False, skipped: int = 0) -> Workflow[Any]:
        inner: Any = Nested.node(node_id="inner")(left=left - 1, is_bad=is_bad, skipped=skipped)
        if not left:
            inner = fail.node(node_id="inner")() if is_bad else echo.node(node_id="inner")(value=0)
        nodes = [inner]
        for _ in range(skipped):
            nodes.append(echo.node(waits_for=nodes[-1:])())
        return Workflow("nested", nodes, output=inner)
