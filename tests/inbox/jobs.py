"""Tasks that take webhooks."""

from __future__ import annotations

import base64

from horsies_django import RetryPolicy, task
from tests.jobs.entries import write_entry


@task(atomic=True, retry_policy=RetryPolicy.constant(0, max_retries=20, auto_retry_for=["WORKER_CRASHED"]))
def on_event(body: str) -> int:
    write_entry(body[:50])
    return len(body)


@task
def on_details(body: str, headers: dict[str, str], is_base64: bool) -> list[object]:
    size = len(base64.b64decode(body) if is_base64 else body.encode())
    return [size, is_base64, headers]


@task
def takes_nothing() -> None:
    """Take no body, so that it fits no webhook."""
