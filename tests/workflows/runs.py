"""Helpers that run and inspect workflows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.core.compat import task_backends
from horsies_django.core.status import TASK_TERMINAL_STATES
from horsies_django.core.workflow_status import WORKFLOW_TASK_TERMINAL_STATES, WorkflowTaskStatus
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.duties import run_pass
from horsies_django.workflows import gateway
from horsies_django.workflows.handle import WorkflowHandle
from tests.conftest import wait_until
from tests.jobs.models import Entry


def start_and_drain(workflow: Workflow[Any], drain: Any) -> WorkflowHandle[Any]:
    """Start a workflow and run all due tasks."""
    handle = workflow.start()
    drain()
    return handle


def wait_and_drain(handle: WorkflowHandle[Any], drain: Any) -> None:
    """Run tasks as they become due, until the workflow has ended."""

    def has_ended() -> bool:
        drain()
        status = handle.status()
        return status is not None and status.is_terminal

    wait_until(has_ended)


def times(key: str) -> int:
    """Return how many entries with this key the bodies have created."""
    return Entry.objects.filter(key=key).count()


def open_tasks() -> int:
    """Return how many tasks have not ended."""
    return Task.objects.exclude(status__in=TASK_TERMINAL_STATES).count()


def step(threads: int = 1) -> None:
    """Run the tasks of one claim."""
    call_command("horsies_worker", once=True, verbosity=0, threads=threads, prefetch=0, start_ahead=0)


def claim_as_dead_worker(count: int = 100) -> list[UUID]:
    """Claim and start the due tasks as a worker that died an hour ago; return their ids."""
    with transaction.atomic():
        claims = Task.objects.claim("dead", start=count, prefetch=0)
    keys = [claim.task_id for claim in claims]
    gateway.mark_running("default", keys)
    then = timezone.now() - timedelta(hours=1)
    Task.objects.filter(pk__in=keys).update(claimed_at=then, started_at=then)
    return keys


def reap() -> None:
    """Run one pass of the reaper."""
    run_pass(task_backends["default"].config)


def make_due() -> None:
    """Make all deferred tasks due."""
    Task.objects.update(run_after=None, enqueued_at=timezone.now() - timedelta(hours=1), deferred=False)


def end_without_notifying(node_id: str, **end: Any) -> UUID:
    """End the task of a node without notice to the engine; return the id of the task."""
    now = timezone.now()
    tasks = Task.objects.filter(pk__in=WorkflowTask.objects.filter(node_id=node_id).values("task_id"))
    key = tasks.get().pk
    tasks.update(**end, completed_at=now, failed_at=now, cancelled_at=now, expired_at=now)
    return UUID(str(key))


def states(handle: WorkflowHandle[Any]) -> dict[str, str]:
    """Return the status of each node by node id."""
    return {node_id: str(status) for node_id, status in handle.tasks().items()}


def codes(handle: WorkflowHandle[Any]) -> dict[str, str | None]:
    """Return the error code of each node by node id."""
    nodes = WorkflowTask.objects.filter(workflow=handle.id).order_by("task_index")
    return dict(nodes.values_list("node_id", "error_code"))


def value(handle: WorkflowHandle[Any], node: Any) -> Any:
    """Return the value of a node, and fail if its result is an error."""
    result = handle.result_for(node)
    assert result.is_ok(), result
    return result.ok


def children(handle: WorkflowHandle[Any]) -> list[WorkflowHandle[Any]]:
    """Return the subworkflows of a run, in the order of their nodes."""
    rows = WorkflowRow.objects.filter(parent__workflow=handle.id).order_by("parent__task_index", "sent_at")
    return [WorkflowHandle(pk) for pk in rows.values_list("pk", flat=True)]


def inconsistencies(handle: WorkflowHandle[Any]) -> list[str]:
    """Return the inconsistencies between the rows of one run, without its subworkflows."""
    workflow = WorkflowRow.objects.get(pk=handle.id)
    nodes = list(WorkflowTask.objects.filter(workflow=workflow).select_related("task").order_by("task_index"))
    by_index = {node.task_index: node for node in nodes}
    is_open = {node.task_index: node.status not in WORKFLOW_TASK_TERMINAL_STATES for node in nodes}
    found = list(_of_workflow(workflow, is_open.values()))
    for node in nodes:
        if (node.completed_at is None) != is_open[node.task_index]:
            found.append(f"{node.node_id} is {node.status}, completed_at is {node.completed_at}")
        if (node.result is None) != is_open[node.task_index]:
            found.append(f"{node.node_id} is {node.status}, its result is {node.result}")
        if node.status == WorkflowTaskStatus.PENDING and node.map_index is None:
            deps = [by_index[index] for index in node.waits_for]
            done = [dep for dep in deps if not is_open[dep.task_index]]
            ok = [dep for dep in done if dep.status == WorkflowTaskStatus.COMPLETED]
            bad = [dep for dep in done if dep not in ok and dep.error_code != "CONDITION_NOT_MET"]
            expected = len(deps) - len(done), len(ok), len(bad)
            if (node.open_deps, node.ok_deps, node.failed_deps) != expected:
                found.append(f"{node.node_id} counts {node.open_deps, node.ok_deps, node.failed_deps}, not {expected}")
        if node.status == WorkflowTaskStatus.ENQUEUED and (node.task is None or node.task.status in _ENDED):
            found.append(f"{node.node_id} is ENQUEUED, its task is {node.task and node.task.status}")
    return found


def _of_workflow(workflow: WorkflowRow, is_open: Collection[bool]) -> Iterator[str]:
    if workflow.open_count != sum(is_open):
        yield f"open_count is {workflow.open_count}, but {sum(is_open)} nodes are open"
    if workflow.node_count != len(is_open):
        yield f"node_count is {workflow.node_count}, but there are {len(is_open)} nodes"
    if str(workflow.status) in _ENDED and workflow.status != "CANCELLED" and any(is_open):
        yield f"the workflow is {workflow.status} with open nodes"
    is_paused, was_stopped = workflow.status == "PAUSED", workflow.status in ("CANCELLED", "EXPIRED", "FAILED")
    if not was_stopped and (workflow.paused_at is not None) != is_paused:
        yield f"the workflow is {workflow.status}, paused_at is {workflow.paused_at}"


def all_inconsistencies(handle: WorkflowHandle[Any]) -> list[str]:
    """Return the inconsistencies of a run and of all its subworkflows."""
    found, level = inconsistencies(handle), children(handle)
    while level:
        found += [one for run in level for one in inconsistencies(run)]
        level = [child for run in level for child in children(run)]
    return found


_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
