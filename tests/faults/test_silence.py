"""A database that answers nothing and closes no connection: no live worker is declared dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.cluster import Cluster
from tests.conftest import Process
from tests.faults.network import Host, Proxy
from tests.faults.server import DatabaseClock
from tests.faults.silence import STALLS, BusyWorkers, pass_time

#: Seconds: a threshold that a brief pause of a worker does not reach, and a stall twice as long.
THRESHOLD, STALL = 3.0, 6.0


def thresholds(seconds: float, heartbeat: float = 0.4) -> dict[str, str]:
    return {
        "TEST_STALE_MS": str(int(seconds * 1_000)),
        "TEST_HEARTBEAT_MS": str(int(heartbeat * 1_000)),
        "TEST_CHECK_MS": "200",
    }


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_pauses_before_it_tries_a_lock_again_keeps_its_tasks(own_cluster, start, tmp_path):
    """As after a long lock at default settings: once it is released, the reaper gets through first."""
    workers = BusyWorkers(
        own_cluster,
        start,
        tmp_path / "gate",
        6.0,
        "--no-reaper",
        url=f"{own_cluster.url}&options=-c%20lock_timeout%3D100",
        reaper_url=own_cluster.url,
        **thresholds(6.0, heartbeat=3.0),
    )

    with STALLS["a lock on the tasks"](own_cluster):
        pass_time(10.0)

    workers.check()


@pytest.mark.slow
def test_a_worker_keeps_its_tasks_when_the_databases_clock_jumps(own_cluster, start, tmp_path):
    DatabaseClock(own_cluster.url).install()
    workers = BusyWorkers(own_cluster, start, tmp_path / "gate", 6.0, **thresholds(6.0, heartbeat=3.0))

    with STALLS["a clock that jumps one hour ahead"](own_cluster):
        pass_time(STALL)

    workers.check()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "stall",
    ["a lock on the heartbeats", "a lock on the workers", "an index that is built on the tasks", "a frozen server"],
)
def test_a_worker_that_sends_a_heartbeat_right_after_a_stall_keeps_its_tasks(own_cluster, start, stall, tmp_path):
    """Without the detection of outages this fails only if a reaper happens to run before a heartbeat."""
    workers = BusyWorkers(own_cluster, start, tmp_path / "gate", THRESHOLD, **thresholds(THRESHOLD))

    with STALLS[stall](own_cluster):
        pass_time(STALL)

    workers.check()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_whose_network_comes_back_after_the_reapers_keeps_its_tasks(own_cluster, start, proxy, tmp_path):
    with Proxy(own_cluster.socket_folder) as other:
        urls = {"url": proxy.url, "reaper_url": other.url}
        workers = BusyWorkers(
            own_cluster, start, tmp_path / "gate", THRESHOLD, "--no-reaper", **urls, **thresholds(THRESHOLD)
        )

        proxy.cut()
        other.cut()
        pass_time(STALL)
        other.heal()
        pass_time(THRESHOLD / 4)
        proxy.heal()

        workers.check()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_keeps_its_tasks_while_its_server_is_unreachable(
    own_cluster: Cluster, start: Callable[..., Process], host: Host, tmp_path: Any
) -> None:
    """Without the detection of outages it mostly passes too, because a heartbeat comes first.

    The kernel retransmits after 6 s and 12 s, and the second is within the threshold from the end of the cut.
    """
    workers = BusyWorkers(own_cluster, start, tmp_path / "gate", 8.0, url=host.url, **thresholds(8.0))

    host.vanish()
    pass_time(9.5)
    host.come_back()

    workers.check()
