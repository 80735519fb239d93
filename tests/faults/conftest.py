"""A separate server for a test, behind a proxy or on its own address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import conftest as chaos
from tests.chaos import ledger
from tests.chaos.cluster import Cluster
from tests.faults.network import Host, Proxy

own_cluster, start = chaos.own_cluster, chaos.start


@pytest.fixture
def proxy(own_cluster: Cluster) -> Iterator[Proxy]:
    """A TCP proxy in front of ``own_cluster``."""
    with Proxy(own_cluster.socket_folder) as proxy:
        yield proxy


@pytest.fixture
def host(own_cluster: Cluster) -> Iterator[Host]:
    """``own_cluster`` behind its own address, which can vanish. Without root it fails instead of skipping."""
    with Host(own_cluster.socket_folder) as host:
        yield host


@pytest.fixture
def effects_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the effects of bodies, for this process and those that it starts."""
    monkeypatch.setenv(ledger.VARIABLE, str(tmp_path / "effects"))
