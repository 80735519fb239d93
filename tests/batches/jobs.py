"""Calls and callbacks of batches."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from horsies_django import BatchHandle, RetryPolicy, WorkflowMeta, task
from tests.jobs.models import Entry


@task
def double(value: int) -> int:
    return 2 * value


@task(retry_policy=RetryPolicy.fixed([1] * 5, auto_retry_for=["WORKER_CRASHED"], jitter=False))
def double_with_retries(value: int) -> int:
    return 2 * value


@task
def fail_unless(path: str) -> str:
    """Fail until the file exists."""
    if not Path(path).exists():
        raise ValueError("not yet")
    return "there"


@task
def wait_for(path: str) -> None:
    limit = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < limit:
        time.sleep(0.01)


@task
def note(key: str) -> str:
    Entry.objects.create(key=key, pid=os.getpid(), at=time.time())
    return key


@task
def note_batch(batch_id: str) -> dict[str, Any]:
    """Record the id, and return the progress of the batch."""
    Entry.objects.create(key=batch_id, pid=os.getpid(), at=time.time())
    progress = BatchHandle(batch_id).progress()
    return {"done": progress.done, "failed": progress.failed}


@task
def add_up(results: list[int], extra: int = 0) -> int:
    return sum(results) + extra


@task
def tree(depth: int, workflow_meta: WorkflowMeta) -> int:
    """Add two more calls of this task to the batch, unless the depth is 0."""
    if depth:
        handle = BatchHandle(workflow_meta.workflow_id)
        handle.add_many(tree, [{"depth": depth - 1}] * 2)
    return depth


@task(atomic=True)
def atomic_tree(depth: int, batch_id: str) -> int:
    if depth:
        BatchHandle(batch_id).add(atomic_tree, depth - 1)
    return depth


@task(retry_policy=RetryPolicy.fixed([1] * 5, auto_retry_for=["WORKER_CRASHED"], jitter=False))
def kill_runner_once(path: str) -> str:
    """Kill the runner at the first attempt."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), 9)
        time.sleep(60)
    return "alive"
