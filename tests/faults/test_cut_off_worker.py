"""A worker is cut off from the primary, which another worker and the reaper still reach."""

from __future__ import annotations

import time

import pytest

from horsies_django.models import Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.load import RECOVERY, Load, report
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.slow

FAILURE, SUCCESS = ("WORKER_FAILURE", "WORKER_CRASHED"), ("COMPLETED", "")


def attempts(handle):
    return list(TaskAttempt.objects.filter(task=handle.id).order_by("pk").values_list("outcome", "error_code"))


def test_the_tasks_of_a_worker_that_is_cut_off_follow_their_policy(own_cluster, proxy, start, effects_file, gate):
    options = ["horsies_worker", "--threads", "4", "--no-reaper"]
    cut_off = start(*options, DATABASE_URL=proxy.url, **RECOVERY)
    once, again = jobs.hold.send("once", str(gate)), jobs.hold_again.send("again", str(gate))
    wait_until(lambda: Entry.objects.count() == 2, what="both bodies have begun")
    (first_id,) = Worker.objects.values_list("pk", flat=True)
    other = start(*options, DATABASE_URL=own_cluster.url, **RECOVERY)
    start("horsies_reaper", DATABASE_URL=own_cluster.url, **RECOVERY)

    with Load(own_cluster.url) as load:
        began = time.time()
        proxy.cut()
        load.wait_for_more()
        assert once.get(timeout=60).err.error_code == "WORKER_CRASHED"
        wait_until(lambda: Entry.objects.filter(key="again").count() == 2, what="the other worker runs it again")
        report("a worker is cut off, its tasks", began, began, Task.objects.filter(pk=again.id))
        gate.touch()
        assert again.value(timeout=60) == "again"
        load.wait_for_more()
        # Bodies of the first worker have ended meanwhile. It stores nothing, and goes on.
        proxy.heal()
        wait_until(lambda: cut_off.output.count("task revoked") >= 2, what="the first worker drops its results")
        load.wait_for_more()
        result = load.end("a worker is cut off")

    assert attempts(once) == [FAILURE]
    assert attempts(again) == [FAILURE, SUCCESS]
    assert not load.in_doubt
    assert not result.lost
    # The worker may have begun the bodies of claims that it has not stored an end of, so their policy decides.
    assert all(end == (["COMPLETED", 2] if int(key) % 2 else ["FAILED", 1]) for key, end in result.others.items())
    assert all(int(key) % 2 for key in result.twice)
    other.stop()
    assert tasks.noop.send().get(timeout=60).is_ok()
    assert Worker.objects.filter(pk=first_id).exists()
