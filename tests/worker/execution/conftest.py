"""A worker that hardly waits for running bodies when it stops."""

import pytest


@pytest.fixture
def worker(worker):
    def start(*flags, **settings):
        return worker("--shutdown-timeout", "0.2", *flags, **settings)

    return start
