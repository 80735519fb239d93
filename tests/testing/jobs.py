"""Tasks that tests drain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction

from horsies_django import RetryPolicy, Unique, task
from tests.jobs.models import Entry


@task
def note(key: str) -> str:
    Entry.objects.create(key=key)
    return key


@task(rate_limit="2/m")
def note_twice_a_minute(key: str) -> str:
    return note.func(key)


@task
async def anote(key: str) -> str:
    await Entry.objects.acreate(key=key)
    return key


@task
def send_more(keys: list[str]) -> None:
    for key in keys:
        note.send(key)


@task
def send_after_commit(key: str) -> None:
    transaction.on_commit(lambda: note.send(key))


@task
def send_itself() -> None:
    send_itself.send()


@task(retry_policy=RetryPolicy.fixed([3_600, 3_600], auto_retry_for=["*"], jitter=False))
def fail_twice(key: str) -> int:
    Entry.objects.create(key=key)
    if (count := Entry.objects.filter(key=key).count()) < 3:
        raise LookupError(f"attempt {count}")
    return count


@task(unique=Unique(period=timedelta(days=1)))
def once_a_day(key: str) -> None:
    Entry.objects.create(key=key)


@task(retention=timedelta(days=3))
def kept_three_days() -> None: ...


@task(takes_context=True, max_attempts=3)
def import_rows(context: Any, rows: list[str]) -> list[str]:
    done = context.state or []
    for number, row in enumerate(rows[len(done) :], start=len(done) + 1):
        done = [*done, row]
        context.save(done)
        context.progress(number, len(rows), row)
    return [f"attempt {context.attempt} of {context.max_attempts}", *done]
