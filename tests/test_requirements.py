"""The requirements page names tests that exist, and requirement ids occur on that page only."""

import ast
import re
import tomllib
from functools import cache

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.once

ROW = re.compile(r"^\| (?P<id>[^|]+) \| (?P<rule>[^|]+) \| (?P<tests>[^|]+) \|$", re.M)
NAME = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")

#: An id in a text, and one in the name of a test.
ID = re.compile(r"\b(?:S[0-4]|A3?|C|P|Q|W)-\d{2,3}\b|_(?:s[0-4]|a3|c|p|q|w)_\d\d(?!\d)|\bscenarios?[ _]\d", re.I)

ROWS = [
    match.groupdict()
    for match in ROW.finditer((ROOT / "docs" / "requirements.md").read_text())
    if match["id"] not in {"Id", "---"}
]


@cache
def names_in(path):
    """Return the names of a file's tests, those of a class with its name before them."""
    module = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in module.body if isinstance(node, functions)}
    for group in module.body:
        if isinstance(group, ast.ClassDef):
            names |= {f"{group.name}::{node.name}" for node in group.body if isinstance(node, functions)}
    return names


def test_each_requirement_id_occurs_once():
    ids = [row["id"] for row in ROWS]

    assert len(ids) > 290
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.slow
def test_each_requirement_names_tests_that_exist():
    missing = []
    for row in ROWS:
        named = NAME.findall(row["tests"])
        assert len(named) == row["tests"].count(".py::") > 0, row
        missing += [
            (row["id"], f"{path}::{name}")
            for path, name in named
            if not (ROOT / path).exists() or name not in names_in(path)
        ]

    assert missing == []


@pytest.mark.slow
def test_requirement_ids_do_not_occur_in_code_or_tests():
    assert [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("horsies_django", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if path.name != "test_requirements.py" and ID.search(line)
    ] == []


@pytest.fixture
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_package_is_classified_as_alpha_or_beta(project):
    status = [line for line in project["classifiers"] if line.startswith("Development Status")]

    assert len(status) == 1
    assert status[0].endswith(("Alpha", "Beta"))


def test_the_package_needs_no_broker(project):
    needed = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}

    assert needed == {"Django", "django-tasks", "psycopg", "django-environ", "croniter"}
