"""The pages say what the code does."""

import ast
import dataclasses
import re

import pytest
from django.core.management import load_command_class

from horsies_django import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskStatus, conf
from tests.conftest import ROOT

PAGES = {path.stem: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}


@pytest.mark.parametrize("page", PAGES)
def test_python_in_a_page_is_python(page):
    for block in re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.M | re.S):
        ast.parse(block)


@pytest.mark.parametrize("kind", [conf.RecoveryOptions, conf.RetentionOptions, conf.WorkerOptions, conf.Options])
def test_the_settings_page_has_every_option_with_its_default(kind):
    for entry in dataclasses.fields(kind):
        line, *_ = [line for line in PAGES["settings"].splitlines() if re.match(rf"\| [^|]*`{entry.name}`", line)]
        if isinstance(entry.default, str | int | float | None | bool):
            assert f"`{entry.default!r}`".replace("'", '"') in line


@pytest.mark.parametrize("command", ["horsies_worker", "horsies_reaper"])
def test_the_worker_page_has_every_flag(command):
    parser = load_command_class("horsies_django", command).create_parser("manage.py", command)
    django = set(load_command_class("django.core", "check").create_parser("manage.py", "check")._option_string_actions)

    for flag in set(parser._option_string_actions) - django - {"--skip-checks"}:
        assert f"`{flag}" in PAGES["worker"], flag


@pytest.mark.parametrize("family", [OperationalCode, OutcomeCode, RetrievalCode, ContractCode])
def test_the_page_of_errors_has_every_code(family):
    assert all(f"`{code}`" in PAGES["errors"] for code in family)


def test_the_page_of_states_has_every_state():
    assert all(status in PAGES["states"] for status in TaskStatus)


def test_the_page_of_checks_has_every_id():
    ids = re.findall(r"horsies\.[EW]\d+", (ROOT / "horsies_django" / "checks.py").read_text())

    assert set(ids) == set(re.findall(r"horsies\.[EW]\d+", PAGES["checks"]))


def test_the_readme_begins_with_its_two_commands():
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGES["README"], re.M | re.S)

    assert len(blocks) == 2
    assert all(block.count("\n") == 1 for block in blocks)
    assert "manage.py demo" in blocks[0]
    assert "-m tests" in blocks[1]
