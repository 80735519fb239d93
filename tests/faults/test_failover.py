"""A primary dies while an asynchronous replica lags: each row of the table in docs/recovery.md."""

import environ
import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import Queue, Task, TaskAttempt
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.server import Replica
from tests.jobs import tasks
from tests.jobs.models import Entry

#: Frequent heartbeats, and a threshold that nothing here reaches.
HEARTBEATS = {"TEST_HEARTBEAT_MS": "400", "TEST_STALE_MS": "60000"}


def pid_of(key):
    return wait_until(lambda: Entry.objects.filter(key=key).last(), limit=40, what=f"{key} has begun").pid


def row(handle):
    return Task.objects.values_list("status", "claim", "claimed_by_worker_id").get(pk=handle.id)


@pytest.fixture
def replica(own_cluster):
    """A replica of ``own_cluster``. Request it before ``start``, whose processes it must outlive."""
    with Replica(own_cluster) as replica:
        yield replica


@pytest.mark.slow
def test_a_failover_to_a_lagging_replica_has_the_documented_effects(replica, proxy, start, tmp_path):
    late = Queue.objects.create(name="late", paused=True)
    first = start("horsies_worker", "--threads", "2", DATABASE_URL=proxy.url, **HEARTBEATS)
    ended = jobs.hold.send("ended", str(tmp_path / "ended"))
    pid_of("ended")
    twice, atomic = jobs.hold_by_process.send("twice", str(tmp_path)), jobs.write_atomically.send("atomic")
    cancelled = tasks.noop.schedule(3_600)
    wait_until(replica.has_caught_up, limit=40, what="the replica has caught up")

    # The replica does not receive these changes.
    replica.lag()
    (tmp_path / "ended").touch()
    assert ended.get(timeout=40).is_ok()
    sent = tasks.noop.send()
    assert sent.get(timeout=40).is_ok()
    assert cancelled.cancel()
    Queue.objects.filter(pk=late.pk).resume()
    assert atomic.get(timeout=40).is_ok()
    old_pid = pid_of("twice")
    _, old_claim, old_worker = row(twice)

    replica.take_over()
    connection.close()
    connection.settings_dict |= environ.Env.db_url_config(replica.url)

    # All of them are lost together.
    assert not Task.objects.filter(pk=sent.id).exists()
    assert row(ended)[0] == TaskStatus.RUNNING
    assert row(twice) == (TaskStatus.PENDING, 0, None)
    assert (row(atomic)[0], Entry.objects.filter(key="atomic").count()) == (TaskStatus.PENDING, 0)
    assert row(cancelled)[0] == TaskStatus.PENDING
    assert Queue.objects.get().paused

    # Another worker makes a claim with the same number; then the first body ends, and its worker reconnects.
    start("horsies_worker", "--queues", "late", DATABASE_URL=replica.url, **HEARTBEATS)
    Queue.objects.resume()
    new_pid = pid_of("twice")
    status, new_claim, new_worker = row(twice)
    assert (status, new_claim) == (TaskStatus.RUNNING, old_claim)
    assert new_worker != old_worker
    (tmp_path / str(old_pid)).touch()
    proxy.redirect(replica.socket_folder)

    # A lost result: the body runs again, without a retry policy, in the same worker.
    again = Entry.objects.filter(key="ended")
    wait_until(lambda: again.count() == 2 and row(ended)[0] == TaskStatus.COMPLETED, limit=60, what="it has run again")
    # The end of the first body was refused, though its claim had the same number.
    assert row(twice) == (TaskStatus.RUNNING, new_claim, new_worker)
    (tmp_path / str(new_pid)).touch()
    assert twice.value(timeout=40) == new_pid
    attempts = TaskAttempt.objects.values_list("attempt", "outcome", "pid")
    assert list(attempts.filter(task=twice.id)) == [(1, "COMPLETED", new_pid)]
    assert list(attempts.filter(task=ended.id)) == [(1, "COMPLETED", pid_of("ended"))]
    # An atomic task has its effects once.
    assert atomic.get(timeout=40).is_ok()
    assert Entry.objects.filter(key="atomic").count() == 1
    assert first.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends_meanwhile",
    [pytest.param(False, id="goes on", marks=pytest.mark.nightly), pytest.param(True, id="ends during the outage")],
)
def test_a_worker_that_claims_a_task_again_after_a_failover_drops_the_first_end(
    replica, proxy, start, tmp_path, ends_meanwhile
):
    worker = start("horsies_worker", "--threads", "2", DATABASE_URL=proxy.url, **HEARTBEATS)
    Queue.objects.create(name="default", paused=True)
    handle = jobs.hold_by_run.send(str(tmp_path))
    wait_until(replica.has_caught_up, limit=40, what="the replica has caught up")
    replica.lag()
    Queue.objects.resume()
    wait_until((tmp_path / "run-1").exists, limit=40, what="the first body has begun")
    claimed = row(handle)

    replica.take_over()
    if ends_meanwhile:
        (tmp_path / "gate-1").touch()
    connection.close()
    connection.settings_dict |= environ.Env.db_url_config(replica.url)
    Queue.objects.resume()
    # After a second, the worker asks which tasks it holds, before it claims or after that.
    wait_until(lambda: worker.output.count("database unavailable") > 3, limit=40, what="the worker has noticed")
    proxy.redirect(replica.socket_folder)
    wait_until((tmp_path / "run-2").exists, limit=40, what="the second body has begun")
    wait_until(lambda: "task revoked" in worker.output or ends_meanwhile, limit=40, what="the first body has stopped")

    assert row(handle)[::2] == claimed[::2]
    (tmp_path / "gate-2").touch()
    assert handle.value(timeout=40) == 2
    assert list(TaskAttempt.objects.values_list("attempt", "outcome")) == [(1, "COMPLETED")]
