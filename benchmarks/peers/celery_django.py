"""Celery with Redis in a Django project: its fixup closes the connections of bodies."""

from __future__ import annotations

from . import site  # first, because it sets up Django
from .base import WorkerCommands, script

from benchmarks.jobs import rows  # isort: skip
from . import celery  # isort: skip
from .celery import app, count_unfinished, send_many  # isort: skip

__all__ = ["app", "count_unfinished", "send_many"]

app.task(name="save")(rows.save)


count_saves = site.count_saves


def setup() -> None:
    celery.setup()
    site.migrate()


def worker_commands(processes: int, slots: int | None) -> WorkerCommands:
    command = [script("celery"), "--app", "benchmarks.peers.celery_django", "worker", "--concurrency", str(processes)]
    return WorkerCommands([[*command, "--loglevel", "WARNING"]], processes)
