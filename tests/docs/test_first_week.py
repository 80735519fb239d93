"""The settings and the cron job of docs/first-week.md; tests/docs/test_commands.py runs its commands."""

from __future__ import annotations

import re

import pytest

from horsies_django.ops.health import parse_checks
from tests.docs.commands import PAGES
from tests.docs.recipes import run_module, write_project


def test_the_checks_of_the_cron_job_are_valid():
    (line,) = re.findall(r"^\*/5 .*$", PAGES["docs/first-week.md"], re.M)

    assert len(parse_checks(re.findall(r"--check (\S+)", line))) == 5


@pytest.mark.slow
@pytest.mark.django_db
def test_the_settings_have_no_errors(tmp_path):
    tasks = "from horsies_django import task\n\n\n@task(queue_name='emails')\ndef remind() -> None: ...\n"
    write_project("first-week.md", tmp_path, {"shop/tasks.py": tasks})
    settings = tmp_path / "settings.py"
    settings.write_text(settings.read_text().replace('"horsies_django", "shop"]', '"shop"]'))

    output = run_module(tmp_path, "django", "check")
    assert "System check identified" in output
    assert "horsies.E" not in output
