"""Three servers with synchronous replication behind a proxy: each row of the second table in docs/recovery.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from operator import methodcaller

import psycopg
import pytest

from horsies_django.models import Task
from tests.chaos.cluster import Cluster
from tests.conftest import Process, wait_until
from tests.faults.load import RECOVERY, SENDERS, THRESHOLD, Load, connect_to
from tests.faults.network import Proxy
from tests.faults.server import Replica, kill
from tests.faults.silence import pass_time, reaper_ran_again

pytestmark = pytest.mark.slow


class Servers:
    """A primary and two replicas. Each commit waits for one of the replicas, and clients come through a proxy."""

    def __init__(self, primary: Cluster, replicas: tuple[Replica, Replica], proxy: Proxy) -> None:
        self.primary, self.replicas, self.proxy = primary, replicas, proxy
        self.switched_at = 0.0
        require_one_of(primary.url, *replicas)

    def switch(self) -> tuple[Replica, Replica]:
        """Promote the replica that has received most, and let the other and the clients follow it. Return both."""
        first, second = sorted(self.replicas, key=methodcaller("stop_receiving"), reverse=True)
        first.promote()
        require_one_of(first.url, second)
        second.follow(first)
        self.switched_at = time.time()
        self.proxy.redirect(first.socket_folder)
        connect_to(first.url)
        return first, second


def require_one_of(url: str, *replicas: Replica) -> None:
    """Let each commit wait for one of these replicas."""
    with psycopg.connect(url, autocommit=True) as connection:
        names = ", ".join(replica.name for replica in replicas)
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({names})'")
        connection.execute("SELECT pg_reload_conf()")
        wait_until(
            lambda: connection.execute("SHOW synchronous_standby_names").fetchone() == (f"ANY 1 ({names})",),
            what="the setting is loaded",
        )


@pytest.fixture
def servers(own_cluster: Cluster, proxy: Proxy) -> Iterator[Servers]:
    """Three servers. Request them before ``start``, whose processes they must outlive."""
    with Replica(own_cluster, "one") as one, Replica(own_cluster, "two") as two:
        yield Servers(own_cluster, (one, two), proxy)


@pytest.fixture
def load(servers: Servers, effects_file: None, start: Callable[..., Process]) -> Iterator[Load]:
    """A sender, two workers and a reaper that use the primary through the proxy."""
    for _ in range(2):
        start("horsies_worker", "--threads", "4", "--no-reaper", DATABASE_URL=servers.proxy.url, **RECOVERY)
    start("horsies_reaper", DATABASE_URL=servers.proxy.url, **RECOVERY)
    with Load(servers.proxy.url) as load:
        yield load


def stop_in_order(servers: Servers) -> None:
    servers.primary.stop("fast")


def kill_primary(servers: Servers) -> None:
    kill(servers.primary)


def isolate_primary(servers: Servers) -> None:
    """Cut the replicas off; the primary lives on, and clients reach it until they are led to its successor."""
    for replica in servers.replicas:
        replica.lag()
    pass_time(1.0)


@pytest.mark.parametrize(
    "fault",
    [kill_primary, *(pytest.param(fault, marks=pytest.mark.nightly) for fault in (stop_in_order, isolate_primary))],
)
def test_a_failover_to_a_synchronous_replica_loses_no_acknowledged_send(servers, load, fault):
    began = time.time()
    fault(servers)
    first, second = servers.switch()
    load.wait_for_more()
    load.end(fault.__name__, began, servers.switched_at).check()

    wait_until(second.has_caught_up, what="the third server follows")
    connect_to(second.url)
    stored = set(Task.objects.values_list("kwargs__key", flat=True))
    connect_to(first.url)
    assert load.acknowledged <= stored


@pytest.mark.nightly
def test_senders_and_workers_wait_while_the_primary_is_cut_off_from_its_replicas(servers, load):
    for replica in servers.replicas:
        replica.lag()
    began, acknowledged = time.time(), len(load.acknowledged)
    pass_time(THRESHOLD + 3)
    assert len(load.acknowledged) <= acknowledged + SENDERS, "more than the answers that were under way"
    assert not load.in_doubt

    healed = time.time()
    for replica in servers.replicas:
        replica.catch_up()
    load.wait_for_more()
    wait_until(reaper_ran_again(servers.primary, THRESHOLD), what="a reaper has run again")

    load.end("a partition of the replicas", began, healed).check()
    assert not load.in_doubt
    assert max(load.seconds) > THRESHOLD
