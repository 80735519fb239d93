"""A cluster that a test may stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import environ
import pytest
from django.db import connection, connections
from pytest_django import DjangoDbBlocker

from tests.chaos.cluster import Cluster, cluster
from tests.conftest import Process


@pytest.fixture
def own_cluster(django_db_blocker: DjangoDbBlocker) -> Iterator[Cluster]:
    """A separate cluster for this test, which serves as the database ``default`` while it runs."""
    if connection.vendor != "postgresql":
        pytest.skip("needs a server to stop; runs with the tests on PostgreSQL")
    with cluster() as own, django_db_blocker.unblock():
        original = connections["default"]
        replacement = original.copy()
        replacement.settings_dict |= environ.Env.db_url_config(own.url)
        connections["default"] = replacement
        try:
            yield own
        finally:
            replacement.close()
            connections["default"] = original


@pytest.fixture
def start(own_cluster: Cluster) -> Iterator[Callable[..., Process]]:
    """Start ``manage.py`` commands on the test's own cluster; they are stopped when the test ends."""
    started: list[Process] = []

    def start_process(*arguments: str, **environment: str) -> Process:
        started.append(Process(*arguments, **environment))
        return started[-1]

    yield start_process
    for process in started:
        process.stop()
