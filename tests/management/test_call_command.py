"""Commands called from Python with values instead of strings."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Task
from horsies_django.ops.inspector import State
from tests.jobs import tasks
from tests.ops.inspector.factories import make

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def run(*arguments, **options):
    out = StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


def test_the_worker_command_accepts_lists_and_timedeltas(drain):
    emails, other = tasks.on_emails.send(), tasks.noop.send()

    drain(queues=["emails"], threads=2, shutdown_timeout=timedelta(seconds=5))
    assert (emails.status(), other.status()) == (TaskStatus.COMPLETED, TaskStatus.PENDING)

    drain(queues="*")
    assert other.status() is TaskStatus.COMPLETED
    with pytest.raises(CommandError, match=r"--threads: '2' is not allowed"):
        drain(threads="2")


def test_the_task_command_accepts_python_values():
    make("failed", sent_at=NowPlus(-7_200))
    make("failed")
    wanted = {"status": [State.FAILED], "older_than": timedelta(hours=1), "limit": 5, "json": True}
    assert len(run("horsies_task", "list", **wanted).splitlines()) == 1

    due = timezone.now() + timedelta(hours=1)
    call = {"positional": [7], "priority": 5, "at": due, "timeout": timedelta(seconds=9), "json": True}
    key = json.loads(run("horsies_task", "enqueue", "tests.jobs.tasks.add", **call))["id"]
    row = Task.objects.get(pk=key)
    assert (row.args, row.priority, row.enqueued_at, row.timeout) == ([7], 5, due, 9)

    run("horsies_task", "move", key, priority=9)
    row.refresh_from_db()
    assert row.priority == 9


def test_the_queue_prune_and_reaper_commands_accept_python_values():
    run("horsies_queue", "set", "emails", max_concurrency=5, retention=timedelta(days=2))
    row = Queue.objects.get(name="emails")
    assert (row.max_concurrency, row.retention) == (5, timedelta(days=2))

    make("failed", failed_at=NowPlus(-7_200))
    make("cancelled", cancelled_at=NowPlus(-7_200))
    printed = run("horsies_prune", older_than=timedelta(hours=1), status=["failed"])
    assert "tasks deleted: 1\n" in printed
    assert run("horsies_reaper", once=True, interval=timedelta(seconds=1))
