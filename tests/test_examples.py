"""The examples of the documentation print what they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.examples import FOLDER

PAGE = (ROOT / "docs" / "examples.md").read_text()
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "project.py")
MARK = "\n# Output:\n"


def shown(name):
    """Return the output that stands at the end of an example."""
    _, mark, output = (FOLDER / name).read_text().partition(MARK)
    assert mark, f"{name} has no output"
    assert all(line.startswith("# ") for line in output.splitlines()), name
    return "".join(f"{line.removeprefix('# ')}\n" for line in output.splitlines())


@pytest.fixture(scope="module")
def run_example():
    """Run examples in a process that has set up their project once."""
    command = [sys.executable, "-W", "error", "-m", "tests.examples"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(name):
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_shows(name, run_example):
    assert run_example(name) == shown(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sending.py", "middleware.py"])
def test_an_example_runs_from_a_checkout_without_any_set_up(name, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DATABASE_URL", None)
    command = [sys.executable, str(FOLDER / name)]

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == (shown(name), "")
    assert not list(tmp_path.iterdir())


def test_the_page_of_the_examples_names_each_of_them():
    assert EXAMPLES
    assert [name for name in EXAMPLES if f"](examples/{name})" not in PAGE] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_enough_to_be_read_at_once(name):
    code = (FOLDER / name).read_text().partition(MARK)[0]

    assert len(code.splitlines()) <= 55
