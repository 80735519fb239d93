"""The tasks of all peers that are backends of Django's task framework."""

from django.tasks import task

from benchmarks import probe
from benchmarks.jobs import rows


@task
def noop(number: int) -> int:
    probe.mark(number)
    return number


@task
def sleep(number: int) -> int:
    probe.sleep(number)
    return number


@task
def save(number: int) -> int:
    return rows.save(number)


BODIES = {"noop": noop, "sleep": sleep, "save": save}
