"""The soak, for a minute."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.once


@pytest.mark.nightly
def test_a_short_soak_runs_all_that_is_due_and_reports_slopes():
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    soak = [sys.executable, "-m", "tests.soak", "--minutes", "0.1", "--rate", "20"]

    done = subprocess.run(soak, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)

    assert done.returncode == 0, done.stderr
    assert re.search(r"[\d,]+ calls .* of which 0 due tasks were left", done.stdout)
    assert "{200: 16}" in done.stdout
    assert re.search(r"^memory of all \(MiB\) .* ± ", done.stdout, re.M)
