"""Bodies for the worker in a web process."""

from __future__ import annotations

from pathlib import Path

from horsies_django import RetryPolicy, task
from tests.jobs.entries import wait_for_gate, write_entry


@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False))
def hold(key: str, gate: str) -> str:
    """Write an entry, then wait until the file ``gate`` exists."""
    write_entry(key)
    wait_for_gate(gate)
    return key


@task(timeout=0.2)
def read_pipe(path: str) -> str:
    """Wait in C code for a writer, where no exception can come."""
    return Path(path).read_text()
