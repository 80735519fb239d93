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


BODIES = {"noop": noop, "nap": nap}
