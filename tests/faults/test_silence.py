"""A database that is silent and does not refuse: no worker that lives is taken for dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.cluster import Cluster
from tests.conftest import Process
from tests.faults.network import Host, Proxy
from tests.faults.server import DatabaseClock
from tests.faults.silence import STALLS, Crew, pass_the_time

#: Seconds of a threshold that a worker outlasts which only stands still for a moment, and of a stall twice as long.
THRESHOLD, STALL = 3.0, 6.0


def thresholds(seconds: float, beat: float = 0.4) -> dict[str, str]:
    return {
        "TEST_STALE_MS": str(int(seconds * 1_000)),
        "TEST_BEAT_MS": str(int(beat * 1_000)),
        "TEST_CHECK_MS": "200",
    }


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_pauses_before_it_tries_a_lock_again_keeps_its_tasks(own_cluster, start, tmp_path):
    """As after a long lock at default settings: the reaper is the first to get through once it is released."""
    crew = Crew(
        own_cluster,
        start,
        tmp_path / "gate",
        6.0,
        "--no-reaper",
        url=f"{own_cluster.url}&options=-c%20lock_timeout%3D100",
        reaper_url=own_cluster.url,
        **thresholds(6.0, beat=3.0),
    )

    with STALLS["a lock on the tasks"](own_cluster):
        pass_the_time(10.0)

    crew.check()


@pytest.mark.slow
def test_a_worker_that_lives_through_a_jump_of_the_databases_clock_keeps_its_tasks(own_cluster, start, tmp_path):
    DatabaseClock(own_cluster.url).install()
    crew = Crew(own_cluster, start, tmp_path / "gate", 6.0, **thresholds(6.0, beat=3.0))

    with STALLS["a clock that jumps one hour ahead"](own_cluster):
        pass_the_time(STALL)

    crew.check()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "stall",
    ["a lock on the heartbeats", "a lock on the workers", "an index that is built on the tasks", "a frozen server"],
)
def test_guard_a_worker_that_beats_at_once_after_a_stall_keeps_its_tasks(own_cluster, start, stall, tmp_path):
    """Fails without the notice of outages only when a reaper gets through before a beat, which is a matter of luck."""
    crew = Crew(own_cluster, start, tmp_path / "gate", THRESHOLD, **thresholds(THRESHOLD))

    with STALLS[stall](own_cluster):
        pass_the_time(STALL)

    crew.check()


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_whose_network_comes_back_after_the_reapers_keeps_its_tasks(own_cluster, start, proxy, tmp_path):
    with Proxy(own_cluster.socket_folder) as other:
        urls = {"url": proxy.url, "reaper_url": other.url}
        crew = Crew(own_cluster, start, tmp_path / "gate", THRESHOLD, "--no-reaper", **urls, **thresholds(THRESHOLD))

        proxy.cut()
        other.cut()
        pass_the_time(STALL)
        other.heal()
        pass_the_time(THRESHOLD / 4)
        proxy.heal()

        crew.check()


@pytest.mark.nightly
@pytest.mark.slow
def test_guard_a_worker_that_outlives_a_server_without_a_route_keeps_its_tasks(
    own_cluster: Cluster, start: Callable[..., Process], host: Host, tmp_path: Any
) -> None:
    """Without the notice of outages it mostly passes too, for a beat comes first.

    The kernel sends anew after 6 s and then after 12 s, which is within this threshold from the end of the cut.
    """
    crew = Crew(own_cluster, start, tmp_path / "gate", 8.0, url=host.url, **thresholds(8.0))

    host.vanish()
    pass_the_time(9.5)
    host.come_back()

    crew.check()
