"""Many tasks, many processes: each runs once."""

from collections import Counter

import pytest
from django.db import connection

from horsies_django.models import Task, TaskAttempt
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.jobs.models import Entry


@pytest.mark.sqlite
@pytest.mark.slow
def test_each_task_leaves_exactly_one_entry_in_the_ledger(manage, tmp_path):
    count, processes = (2_000, 2) if connection.vendor == "sqlite" else (20_000, 4)
    # The first tasks fill all slots, so that no process ends before the last one has begun.
    gate, slots = tmp_path / "gate", 4 * processes
    first = tasks.hold.with_options(priority=1).send_many({"key": "first", "gate": str(gate)} for _ in range(slots))
    handles = [*first, *tasks.write.send_many({"key": str(number)} for number in range(count))]

    process = manage("horsies_worker", "--drain", "--processes", str(processes), "--threads", "4", "-v0")
    wait_until(lambda: Entry.objects.filter(key="first").count() == slots, limit=50)
    gate.touch()
    status = process.wait(480)

    assert status == 0, process.output
    assert "locked" not in process.output
    ledger = Counter(Entry.objects.values_list("key", flat=True))
    assert ledger == Counter({"first": slots} | {str(number): 1 for number in range(count)})
    assert Entry.objects.values("pid").distinct().count() == processes
    assert Task.objects.completed().filter(attempt=1).count() == len(handles) == slots + count
    assert TaskAttempt.objects.filter(attempt=1, outcome="COMPLETED", will_retry=False).count() == len(handles)
    assert TaskAttempt.objects.count() == len(handles)
