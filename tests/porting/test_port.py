"""A shop of ten Celery tasks, ``before``, and its port, ``after``, by docs/from-celery.md alone.

The project ``before`` is for reading: it needs Celery, which these tests do not install. In an environment that has it,
its own tests pass with ``python -m django test shop``.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, database_url

FOLDER = Path(__file__).parent
PAGE = (ROOT / "docs" / "from-celery.md").read_text()


@pytest.mark.slow
@pytest.mark.django_db
def test_the_tests_of_the_ported_shop_pass():
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": database_url(),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "error", "-m", "django", "test", "--noinput", "shop"]

    done = subprocess.run(
        command, cwd=FOLDER / "after", env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert re.search(r"Ran 14 tests .*\n\nOK", done.stderr), done.stdout + done.stderr


def test_the_port_has_the_ten_tasks_of_the_celery_shop():
    before, after = (names_of(FOLDER / project / "shop" / "tasks.py") for project in ("before", "after"))

    assert len(before) == 10
    assert after == before


def names_of(file: Path) -> list[str]:
    """Return the names of the functions that are tasks."""
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [
        function.name
        for function in functions
        if any(re.match(r"(shared_)?task\b(?!_)", ast.unparse(decorator)) for decorator in function.decorator_list)
    ]


def test_the_page_has_every_name_and_argument_that_the_port_takes_from_this_package():
    names = set()
    for file in (FOLDER / "after" / "shop").glob("*.py"):
        tree = ast.parse(file.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        ours = {alias.name for node in imports if str(node.module).startswith("horsies_django") for alias in node.names}
        names |= ours
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Name(name), keywords=keywords) if name in ours:
                    names |= {keyword.arg for keyword in keywords if keyword.arg}
                case ast.Attribute(ast.Name("context" | "handle" | "run" | "task_result" | "RetryPolicy"), name):
                    names.add(name)
                case ast.Call(ast.Attribute(_, "with_options" | "fixed" | "exponential"), keywords=keywords):
                    names |= {keyword.arg for keyword in keywords if keyword.arg}

    assert len(names) > 30
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", PAGE)) == []
