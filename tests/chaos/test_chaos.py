"""The trial of ``python -m tests.chaos``, short enough for every day."""

import os
import subprocess
import sys

import pytest
from django.db import connection

from tests.chaos.cluster import ROOT


@pytest.mark.slow
def test_whatever_dies_no_task_is_lost_and_each_runs_as_often_as_its_policy_says():
    if connection.vendor != "postgresql":
        pytest.skip("has a PostgreSQL of its own; runs with the tests on PostgreSQL")
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
