"""The tests of sending, draining and the worker, without what only Linux has: see ``sitecustomize.py``."""

import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from django.db import connection

from tests.conftest import ROOT

TESTS = [
    "tests/enqueue/test_send.py",
    "tests/platforms/test_worker.py",
    "tests/testing/test_drain.py",
    "tests/worker/lifecycle/test_runner_processes.py::test_a_reaper_that_raises_ends_its_worker_with_exit_status_1",
    "tests/worker/test_async.py",
]

#: Modules of tasks that these tests use: others need Linux.
MODULES = ["tests.enqueue.jobs", "tests.testing.jobs", "tests.worker.lifecycle.jobs"]

#: By day Windows on SQLite, at night each on both databases.
SYSTEMS = [
    pytest.param("macos", marks=pytest.mark.nightly),
    pytest.param("windows", marks=() if connection.vendor == "sqlite" else pytest.mark.nightly),
]


@pytest.mark.sqlite
@pytest.mark.slow
@pytest.mark.django_db  # runs on both databases
@pytest.mark.parametrize("system", SYSTEMS)
def test_sending_draining_and_the_worker_do_without_what_the_system_has_not(system):
    url = os.environ["DATABASE_URL"]
    if not url.startswith("sqlite:"):  # SQLite's file has the process's id in its name
        url = urlsplit(url)._replace(path=f"/simulated_{system}_{os.getpid()}").geturl()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "DATABASE_URL": url,
        "PYTHONPATH": f"{ROOT}/tests/platforms",
        "SIMULATE": system,
        "TEST_MODULES": ",".join(MODULES),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]

    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout
