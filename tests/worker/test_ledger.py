"""Many tasks, many processes: each runs once."""

from collections import Counter

import pytest
from django.db import connection

from horsies_django.models import Task, TaskAttempt
from tests.jobs import tasks
from tests.jobs.models import Entry


@pytest.mark.slow
def test_2_each_task_leaves_exactly_one_entry_in_the_ledger(manage):
    count, processes = (2_000, 2) if connection.vendor == "sqlite" else (20_000, 4)
    handles = tasks.write.send_many({"key": str(number)} for number in range(count))

    process = manage("horsies_worker", "--drain", "--processes", str(processes), "-v0")
    status = process.wait(240)

    assert status == 0, process.output
    assert "locked" not in process.output
    ledger = Counter(Entry.objects.values_list("key", flat=True))
    assert ledger == Counter(str(number) for number in range(count))
    assert Entry.objects.values("pid").distinct().count() == processes
    assert Task.objects.completed().filter(attempt=1).count() == len(handles) == count
    assert TaskAttempt.objects.filter(attempt=1, outcome="COMPLETED", will_retry=False).count() == count
    assert TaskAttempt.objects.count() == count
