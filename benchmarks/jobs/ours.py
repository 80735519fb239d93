"""The tasks of horsies-django."""

import asyncio
from typing import Any

from benchmarks import probe
from benchmarks.jobs import rows
from horsies_django import TaskContext, task


@task
def noop(number: int) -> int:
    probe.mark(number)
    return number


@task
async def anoop(number: int) -> int:
    probe.mark(number)
    return number


@task
async def asleep(number: int) -> int:
    probe.mark(number)
    await asyncio.sleep(20)
    return number


@task
def sleep(number: int) -> int:
    probe.sleep(number)
    return number


@task
def list_numbers(count: int) -> list[int]:
    return list(range(count))


@task
def gather(numbers: list[int], number: int) -> int:
    probe.mark(number)
    return len(numbers)


@task
def save(number: int) -> int:
    return rows.save(number)


@task
async def asave(number: int) -> int:
    return await rows.asave(number)


@task(takes_context=True)
def steps(context: TaskContext, number: int) -> int:
    probe.mark(number)
    for step in range(5):
        context.step("noop", int, step)
    return number


BODIES: dict[str, Any] = {
    "noop": noop,
    "sleep": sleep,
    "anoop": anoop,
    "asleep": asleep,
    "save": save,
    "asave": asave,
    "steps": steps,
}
