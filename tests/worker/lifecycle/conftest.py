"""Workers that end with their test."""

import os
import signal

import pytest


@pytest.fixture
def worker(worker):
    """Start workers that are killed after the test."""
    started = []

    def start(*flags, **settings):
        started.append(worker("--shutdown-timeout", "1", *flags, **settings))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            os.killpg(process.process.pid, signal.SIGKILL)
