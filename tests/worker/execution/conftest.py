"""A worker that does not wait for the bodies that a test has left behind."""

import pytest


@pytest.fixture
def worker(worker):
    def start(*flags, **settings):
        return worker("--shutdown-timeout", "0.2", *flags, **settings)

    return start
