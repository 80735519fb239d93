"""The settings, the variables and the cron job of docs/first-week.md.

tests/docs/test_commands.py runs its commands, but not those of root.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from horsies_django.ops.health import parse_checks
from tests.conftest import ROOT
from tests.docs.commands import PAGES
from tests.docs.recipes import run_module, write_project

PAGE = PAGES["docs/first-week.md"]
(CRON_LINE,) = re.findall(r"^\*/5 .*$", PAGE, re.M)
(VARIABLES,) = re.findall(r"^```text\n(# /etc/shop/environment\n.*?)^```$", PAGE, re.M | re.S)
(LOAD,) = re.findall(r"Load it in each shell: `(.*?)`", PAGE)


def test_the_checks_of_the_cron_job_are_valid():
    assert len(parse_checks(re.findall(r"--check (\S+)", CRON_LINE))) == 5


def test_the_cron_job_has_no_percent_sign_which_cron_takes_for_the_end_of_a_line():
    assert "%" not in CRON_LINE.replace(r"\%", "")


def test_the_file_of_variables_has_those_that_the_settings_read():
    read = re.findall(r'os\.environ\.get\("(\w+)"', PAGE)

    assert re.findall(r"^(\w+)=", VARIABLES, re.M) == ["DATABASE_URL", *read]


@pytest.mark.slow
@pytest.mark.django_db
def test_the_settings_pass_every_check(tmp_path):
    if connection.vendor == "sqlite":
        pytest.skip("the page sets up PostgreSQL")
    write_shop(tmp_path)

    output = run_module(tmp_path, "django", "check")
    assert "System check identified" in output
    assert "horsies." not in output


@pytest.mark.slow
@pytest.mark.once
def test_the_cron_job_reports_on_stderr_that_no_worker_runs(tmp_path):
    write_shop(tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "manage.py").write_text("from django.core.management import execute_from_command_line as run\nrun()\n")
    variables = re.sub("(?<=DATABASE_URL=).*", f"sqlite:///{tmp_path}/db.sqlite3", VARIABLES)
    (tmp_path / "environment").write_text(f"{variables}DJANGO_SETTINGS_MODULE=settings\n")

    migrated = run_line(f"{LOAD}; cd /srv/shop && .venv/bin/python manage.py migrate", tmp_path)
    assert migrated.returncode == 0, migrated.stderr
    checked = run_line(CRON_LINE.split(maxsplit=5)[5], tmp_path)

    assert (checked.returncode, checked.stdout) == (1, "")
    assert "workers=1" in checked.stderr


def write_shop(folder: Path) -> None:
    """Write a project with the settings of the page."""
    tasks = "from horsies_django import task\n\n\n@task(queue_name='emails')\ndef remind() -> None: ...\n"
    write_project("first-week.md", folder, {"shop/tasks.py": tasks})
    settings = folder / "settings.py"
    settings.write_text(settings.read_text().replace('"horsies_django", "shop"]', '"shop"]'))


def run_line(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as cron does: in a shell without variables of the project."""
    line = line.replace("/etc/shop/environment", str(folder / "environment")).replace("/srv/shop", str(folder))
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(["sh", "-c", line], env=variables, capture_output=True, text=True, timeout=120, check=False)
