"""Bodies that go through rows with ``context.batches()``."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F

from horsies_django import TaskContext, task
from tests.jobs.entries import wait_for_gate, write_entry
from tests.jobs.models import Item


class Broken(Exception):
    """A row breaks a body."""


def count_up(rows: list[Item]) -> None:
    Item.objects.filter(pk__in=[row.pk for row in rows]).update(count=F("count") + 1)


def count_up_until(rows: list[Item], broken: str | None) -> None:
    """Count up; fail in the turn with the row of this text."""
    count_up(rows)
    if broken in [row.text for row in rows]:
        raise Broken(broken)


@task(takes_context=True, max_attempts=3, backoff=0)
def in_block(context: TaskContext, order: list[str], broken: str | None) -> None:
    for turn in context.batches(Item.objects.order_by(*order), size=2):
        with turn as rows:
            write_entry(",".join(row.text for row in rows))
            count_up_until(rows, broken if context.attempt == 1 else None)


@task(takes_context=True, max_attempts=3, backoff=0)
def by_function(context: TaskContext, order: list[str], broken: str | None) -> None:
    def body(rows: list[Item]) -> None:
        write_entry(",".join(row.text for row in rows))
        count_up_until(rows, broken if context.attempt == 1 else None)

    context.batches(Item.objects.order_by(*order), body, size=2)


@task(takes_context=True, max_attempts=3, backoff=0)
async def in_coroutine(context: TaskContext, order: list[str], broken: str | None) -> None:
    def body(rows: list[Item]) -> None:
        write_entry(",".join(row.text for row in rows))
        count_up_until(rows, broken if context.attempt == 1 else None)

    await context.abatches(Item.objects.order_by(*order), body, size=2)


@task(takes_context=True)
def from_values(context: TaskContext) -> list[str]:
    texts = []
    for turn in context.batches(Item.objects.order_by("-on").values("pk", "on", "text"), size=2):
        with turn as rows:
            texts += [row["text"] for row in rows]
    return texts


@task(takes_context=True)
def leaves_early(context: TaskContext) -> None:
    for turn in context.batches(Item.objects.all(), size=2):
        with turn as rows:
            count_up(rows)
            if rows[0].text == "c":
                continue
            if rows[0].text == "e":
                break


@task(takes_context=True, max_attempts=2, backoff=0)
def stops_after_a_turn(context: TaskContext, *, fails_between: bool) -> None:
    """Leave the loop after a turn, record a step, and fail."""
    try:
        for turn in context.batches(Item.objects.all(), size=2):
            with turn as rows:
                count_up(rows)
            if not fails_between:
                break
            if context.attempt == 1:
                raise Broken
    finally:
        context.step("after", write_entry, "after")
    if context.attempt == 1:
        raise Broken


@task(takes_context=True, max_attempts=2, backoff=0)
def goes_on_after_a_failure(context: TaskContext, broken: str) -> None:
    try:
        context.batches(
            Item.objects.all(), partial(count_up_until, broken=broken if context.attempt == 1 else None), size=2
        )
    except Broken:
        write_entry("caught")
    context.step("after", write_entry, "after")
    if context.attempt == 1:
        raise Broken


@task(takes_context=True)
def two_loops(context: TaskContext) -> None:
    context.batches(Item.objects.filter(text="nothing"), count_up)
    context.batches(Item.objects.all(), count_up, size=2)
    context.batches(Item.objects.all(), count_up, size=2)


#: The order of `ordered`, which a test changes as a deploy does.
ORDER = ["text"]


@task(takes_context=True, max_attempts=2, backoff=60)
def ordered(context: TaskContext) -> None:
    for turn in context.batches(Item.objects.order_by(*ORDER), size=2):
        with turn as rows:
            count_up(rows)
        raise Broken


@task(takes_context=True)
def commits(context: TaskContext) -> None:
    for turn in context.batches(Item.objects.all(), size=2):
        with turn as rows:
            name = rows[0].text
            transaction.on_commit(partial(write_entry, f"{name} committed"))
            write_entry(name)


def tick(seconds: float) -> None:
    """Replaced by a test whose clock goes on."""


@task(takes_context=True, timeout=100)
def slow_turns(context: TaskContext) -> None:
    write_entry("begun")
    for turn in context.batches(Item.objects.all(), size=1):
        with turn as rows:
            count_up(rows)
            tick(40)


def hold(gate: str, rows: list[Item]) -> None:
    """Count up, and hold the second turn until the gate opens."""
    count_up(rows)
    if rows[0].text == "c":
        with open(f"{gate}.held", "w"):
            pass
        wait_for_gate(gate)


@task(takes_context=True)
def held(context: TaskContext, gate: str) -> None:
    for turn in context.batches(Item.objects.all(), size=2):
        with turn as rows:
            hold(gate, rows)


@task(takes_context=True)
async def held_coroutine(context: TaskContext, gate: str) -> None:
    await context.abatches(Item.objects.all(), partial(hold, gate), size=2)


@task(takes_context=True)
def paused(context: TaskContext, seconds: float) -> None:
    context.batches(Item.objects.all(), count_up, size=2, pause=seconds)


@task(takes_context=True)
async def paused_coroutine(context: TaskContext, seconds: float) -> None:
    await context.abatches(Item.objects.all(), count_up, size=2, pause=seconds)


@task(takes_context=True)
def locks(context: TaskContext, *, skip_locked: bool) -> None:
    context.batches(Item.objects.select_related("owner"), count_up, lock=True, skip_locked=skip_locked)


@task(takes_context=True, atomic=True)
def inside_atomic(context: TaskContext) -> None:
    context.batches(Item.objects.all(), count_up)


@task(takes_context=True)
def counts_range(context: TaskContext, first: int, last: int, size: int, pause: float = 0) -> None:
    context.batches(Item.objects.filter(pk__range=(first, last)), count_up, size=size, pause=pause)


@task(takes_context=True, max_attempts=1_000, backoff=0)
def counts_range_by_hand(context: TaskContext, first: int, last: int, size: int, pause: float = 0) -> None:
    """The same, as it goes wrong: the cursor is kept in a transaction of its own."""
    cursor: Any = context.state or first - 1
    while rows := list(Item.objects.filter(pk__gt=cursor, pk__lte=last).order_by("pk")[:size]):
        count_up(rows)
        time.sleep(pause)
        cursor = rows[-1].pk
        context.save(cursor)
