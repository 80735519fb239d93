"""Unique tasks."""

from __future__ import annotations

from horsies_django import RetryPolicy, Unique, task
from tests.jobs.models import Entry
from tests.worker.execution.jobs import wait_for_gate, write_entry


@task
def plain(user_id: int, page: int = 1, *, note: str = "") -> int:
    return user_id


@task
def anything(*args, **kwargs):
    return len(args) + len(kwargs)


@task(takes_context=True)
def with_context(context, user_id):
    return user_id


@task(sensitive=("iban",))
def pay(iban: str, cents: int = 0) -> None:
    write_entry(iban)


@task
def queue_named(queue: str) -> None:
    write_entry(queue)


@task
def note(name: str, text: str = "") -> None:
    write_entry(f"{name}: {text}")


@task(
    unique=Unique(by=("name",), until="started"), retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"])
)
def hold_until_started(name: str, gate: str) -> None:
    write_entry(f"begun {name}")
    wait_for_gate(gate)


@task(unique=Unique(by=("name",), until="success"), retry_policy=RetryPolicy.fixed([1], auto_retry_for=["*"]))
def always_fails(name: str) -> None:
    write_entry(f"failed {name}")
    raise ValueError(name)


@task(unique=Unique.debounce(1, by=("name",)))
def index(name: str, text: str = "") -> None:
    write_entry(f"{name}: {text}")


@task(unique=Unique(by=("name",), on_conflict="replace"))
def count_writes(name: str) -> int:
    return Entry.objects.filter(key__startswith="wrote ").count()


@task(unique=Unique.debounce(0.2, by=("name",)))
def count_writes_later(name: str) -> int:
    return Entry.objects.filter(key__startswith="wrote ").count()


COUNTERS = {"replace": count_writes, "debounce": count_writes_later}
