"""Tasks that write and log, for tests in this process and in workers."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

from django.db import transaction

from horsies_django import RetryPolicy, TaskContext, task
from tests.jobs.entries import wait_for_gate, write_entry

logger = logging.getLogger("shop.reports")


@task(takes_context=True)
def writes(context: TaskContext, chunks: list[Any]) -> int:
    for chunk in chunks:
        context.write(chunk)
    return len(chunks)


@task(takes_context=True)
async def awrites(context: TaskContext, chunks: list[Any]) -> int:
    for chunk in chunks:
        await context.awrite(chunk)
    return len(chunks)


@task(takes_context=True, atomic=True)
def writes_atomically(context: TaskContext, chunks: list[Any], fails: bool = False) -> None:
    for chunk in chunks:
        context.write(chunk)
    if fails:
        raise ValueError("rolled back")


@task(
    takes_context=True, retry_policy=RetryPolicy.constant(0, max_retries=5, auto_retry_for=["WORKER_CRASHED", "AGAIN"])
)
def counts(context: TaskContext, gate: str, count: int) -> None:
    """Write numbers, say so, and wait."""
    for number in range(count):
        context.write([context.attempt, number])
    write_entry(f"written {context.attempt}")
    wait_for_gate(gate)
    context.write([context.attempt, "end"])


@task(takes_context=True)
def writes_at_gates(context: TaskContext, folder: str, count: int) -> None:
    for number in range(count):
        wait_for_gate(f"{folder}/{number}")
        context.write(f"line {number}\n")


@task(takes_context=True, sensitive=["iban"])
def writes_secrets(context: TaskContext) -> None:
    context.write("the IBAN is DE02")
    context.write(["the IBAN is DE02"])
    context.write({"iban": "DE02", "bank": "of Django", "password": "x"})
    logger.warning("the IBAN is DE02")


@task
def logs(level: str = "INFO") -> None:
    logger.log(getattr(logging, level), "a %s for %s", level.lower(), "you")


@task
async def logs_everywhere() -> None:
    logger.info("in the coroutine")
    await asyncio.gather(asyncio.to_thread(logger.info, "in a thread"), _says("in a child"))


async def _says(text: str) -> None:
    logger.info(text)


@task(takes_context=True)
def steps_and_logs(context: TaskContext) -> None:
    context.write("begins")
    logger.info("begins")
    context.step("first", int)
    context.write("between")
    context.wait_event("go")
    logger.info("goes on")
    context.write("goes on")


@task
def fails_and_logs() -> None:
    logger.info("about to fail")
    with transaction.atomic():
        raise ValueError("no such row")


@task(takes_context=True)
def reports_at_gates(context: TaskContext, folder: str) -> None:
    """Report, write, and report again, each after a gate."""
    context.progress(1, 3, "m")
    wait_for_gate(f"{folder}/0")
    context.write("one\ntwo\r\n\u2028three")
    wait_for_gate(f"{folder}/1")
    context.progress(3, 3)


@task(takes_context=True, sensitive=["progress"])
def reports_secrets(context: TaskContext, folder: str) -> None:
    context.progress(1, 3, "m")


@task(takes_context=True, atomic=True, timeout=1)
def writes_and_spins(context: TaskContext, seconds: float) -> str:
    """Write now and then, and end late if the time limit does not end it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.write("spins")
        time.sleep(0.05)
    return "not stopped"


@task(takes_context=True, atomic=True)
def writes_last_words(context: TaskContext, gate: str) -> None:
    context.write("first words")
    wait_for_gate(gate)
    context.write("last words")


@task(takes_context=True)
def writes_before_and_after(context: TaskContext, gate: str) -> None:
    context.write("first words")
    wait_for_gate(gate)
    context.write("last words")


@task(takes_context=True)
def saves_and_writes(context: TaskContext, gate: str) -> None:
    context.save(1)
    write_entry("saved")
    wait_for_gate(gate)
    context.write("after the save")


@task(takes_context=True, atomic=True)
def writes_on_commit(context: TaskContext) -> None:
    context.write("in the body")
    transaction.on_commit(partial(context.write, "after the commit"))
