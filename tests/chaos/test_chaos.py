"""A short run of ``python -m tests.chaos``."""

import os
import subprocess
import sys

import pytest
from django.db import connection

from tests.chaos.cluster import ROOT


@pytest.mark.slow
def test_no_task_is_lost_or_runs_too_often_while_processes_die():
    if connection.vendor != "postgresql":
        pytest.skip("starts its own PostgreSQL; runs with the tests on PostgreSQL")
    seed = os.environ.get("CHAOS_SEED", "1")

    trial = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seconds", "40", "--seed", seed],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=400,
    )

    assert trial.returncode == 0, trial.stdout
