"""The same two tasks for every peer that is a backend of Django's own task framework."""

from django.tasks import task

from benchmarks import probe


@task
def noop(number: int) -> int:
    probe.mark(number)
    return number


@task
def nap(number: int) -> int:
    probe.nap(number)
    return number


BODIES = {"noop": noop, "nap": nap}
