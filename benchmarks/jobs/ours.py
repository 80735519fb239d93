"""This queue's tasks."""

from benchmarks import probe
from horsies_django import task


@task
def noop(number: int) -> int:
    probe.mark(number)
    return number


@task
def nap(number: int) -> int:
    probe.nap(number)
    return number


@task
def listed(count: int) -> list[int]:
    return list(range(count))


@task
def gather(of: list[int], number: int) -> int:
    probe.mark(number)
    return len(of)


BODIES = {"noop": noop, "nap": nap}
