"""A hostile row breaks no list that shows it."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import reverse

from horsies_django import OperationalCode, TaskStatus
from horsies_django.core.backends import config_of
from horsies_django.models import Schedule, Task, Worker
from horsies_django.reaper.duties import run_pass
from tests.jobs import tasks

#: The deepest nesting that the database stores.
_LEVELS = 5_000 if connection.vendor == "postgresql" else 995

#: JSON that Python can not read, and JSON of an unexpected shape.
DEEP, LONG, WRONG = "[" * _LEVELS + "]" * _LEVELS, "1" + "0" * 20_000, "1"


def _write(row, text, *columns):
    assignments = ", ".join(f"{column} = %s" for column in columns)
    key = row._meta.pk.get_db_prep_value(row.pk, connection)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {row._meta.db_table} SET {assignments} WHERE id = %s", [*[text] * len(columns), key])


@pytest.mark.parametrize("text", [DEEP, LONG, WRONG], ids=["too deep", "too long a number", "unexpected shape"])
def test_the_lists_and_the_reaper_work_despite_unreadable_json(transactional_db, admin_client, text):
    task = Task.objects.get(pk=tasks.noop.send().id)
    schedule = Schedule.objects.create(name="nightly", task_name=tasks.noop.module_path, timing="every:300")
    worker = Worker.objects.create(id="w", hostname="h", pid=1)
    run = Task.objects.get(pk=tasks.noop.send().id)
    Task.objects.filter(pk=run.pk).update(
        status=TaskStatus.RUNNING, claim=1, attempt=1, started_at="2020-01-01T00:00Z", claimed_by_worker_id="gone"
    )
    _write(task, text, "progress", "unknown_to", "retry_policy")
    _write(run, text, "progress", "unknown_to", "retry_policy")
    _write(schedule, text, "args", "kwargs", "options")
    _write(worker, text, "queues", "excluded_queues")

    for name, row in (("task", task), ("schedule", schedule), ("worker", worker)):
        assert admin_client.get(reverse(f"admin:horsies_django_{name}_changelist")).status_code == 200, name
        assert admin_client.get(reverse(f"admin:horsies_django_{name}_change", args=[row.pk])).status_code == 200, name
    assert admin_client.get(reverse("admin:horsies_django_queue_changelist")).status_code == 200
    for command in (["horsies_task", "list"], ["horsies_task", "show", str(task.pk)], ["horsies_status"]):
        call_command(*command, stdout=(out := StringIO()))
        assert out.getvalue()

    run_pass(config_of("default"))

    run.refresh_from_db()
    assert (run.status, run.error_code) == (TaskStatus.FAILED, OperationalCode.WORKER_CRASHED)
