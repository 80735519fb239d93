"""The database is restored to a point in time, and workers that ran on are led to it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from horsies_django.models import Queue, Task, TaskAttempt
from tests.chaos.cluster import Cluster
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.load import RECOVERY, Load, connect_to
from tests.faults.server import Backup
from tests.jobs.models import Entry

pytestmark = pytest.mark.slow


@pytest.fixture
def backup(own_cluster: Cluster) -> Iterator[Backup]:
    """A backup of ``own_cluster``. Request it before ``start``, whose processes it must outlive."""
    with Backup(own_cluster) as backup:
        connect_to(own_cluster.url)  # which has restarted
        yield backup


def has_begun(key: str) -> bool:
    return Entry.objects.filter(key=key).exists()


def ends(handle):
    """The attempts of a task that are stored."""
    return list(TaskAttempt.objects.filter(task=handle.id).order_by("pk").values_list("attempt", "outcome"))


@pytest.mark.nightly
def test_a_restore_to_a_point_in_time_under_running_workers_has_the_documented_effects(
    own_cluster, backup, proxy, start, effects_file, tmp_path
):
    options = ["horsies_worker", "--threads", "6", "--no-reaper"]
    Queue.objects.create(name="late", paused=True)
    leaving = start(*options, "--queues", "leaving", DATABASE_URL=proxy.url, **RECOVERY)
    gates = {name: tmp_path / name for name in ("before", "after", "never")}
    once = jobs.hold.with_options(queue_name="leaving").send("once", str(gates["before"]))
    again = jobs.hold_again.with_options(queue_name="leaving").send("again", str(gates["before"]))
    wait_until(
        lambda: has_begun("once") and has_begun("again"), what="both bodies of the worker that leaves have begun"
    )
    worker = start(*options, DATABASE_URL=proxy.url, **RECOVERY)
    start("horsies_reaper", DATABASE_URL=proxy.url, **RECOVERY)
    ended, held = jobs.hold.send("ended", str(gates["before"])), jobs.hold.send("held", str(gates["after"]))
    wait_until(lambda: has_begun("ended") and has_begun("held"), what="both bodies of the other worker have begun")
    late = jobs.hold_by_run.with_options(queue_name="late").send(str(tmp_path))

    with Load(proxy.url) as load:
        kept = set(load.acknowledged)
        backup.mark("point")
        load.wait_for_more()
        gates["before"].touch()
        assert [handle.get(timeout=40).is_ok() for handle in (once, again, ended)] == [True] * 3
        leaving.stop()
        Queue.objects.resume()
        new = jobs.hold.send("new", str(gates["never"]))
        wait_until(lambda: has_begun("new") and (tmp_path / "run-1").exists(), what="both later bodies have begun")

        began = time.time()
        backup.restore("point")
        wait_until(backup.is_restored, what="the restored server takes writes")
        connect_to(backup.url)
        assert Queue.objects.get().paused
        Queue.objects.resume()
        over = time.time()
        proxy.redirect(backup.socket_folder)
        load.wait_for_more()

        # What was sent after the point is gone, and its body is asked to stop.
        assert not Task.objects.filter(pk=new.id).exists()
        wait_until(lambda: f"task revoked id={new.id}" in worker.output, what="the body without a row is stopped")
        # What ended after the point runs again: whatever its policy if its worker lives, by its policy if not.
        wait_until(lambda: Entry.objects.filter(key="ended").count() == 2 and ends(ended), what="it has run again")
        wait_until(lambda: ends(once) and len(ends(again)) == 2, what="the reaper has found the tasks of the worker")
        assert (ends(ended), ends(once)) == ([(1, "COMPLETED")], [(1, "WORKER_FAILURE")])
        assert ends(again) == [(1, "WORKER_FAILURE"), (2, "COMPLETED")]
        # What was claimed after the point is claimed again, and the first end is dropped.
        wait_until((tmp_path / "run-2").exists, what="the second body has begun")
        (tmp_path / "gate-1").touch()
        (tmp_path / "gate-2").touch()
        wait_until(lambda: ends(late), what="it has ended")
        assert Task.objects.get(pk=late.id).result == {"ok": 2}
        # What runs since before the point goes on.
        gates["after"].touch()
        assert held.value(timeout=40) == "held"
        assert (ends(held), Entry.objects.filter(key="held").count()) == ([(1, "COMPLETED")], 1)

        result = load.end("a restore to a point in time", began, over)

    assert result.lost
    assert not result.lost & kept
    assert result.others == {}
    assert result.without_row <= result.lost | set(load.in_doubt)
