"""The databases that the queue supports, and the errors for other databases and a missing driver."""

import json
import subprocess
import sys

import pytest

from horsies_django.db.check_database import sqlite_problem
from tests.conftest import ROOT, Process

pytestmark = pytest.mark.once

MARIADB = {"DJANGO_SETTINGS_MODULE": "tests.checks.mariadb"}

#: Like a machine with psycopg but without libpq.
NO_LIBPQ = {"PSYCOPG_IMPL": "c", "DATABASE_URL": "postgresql://nobody@nowhere/nothing"}

REFUSED = "DATABASES['default'] is MariaDB, on which the queue does not run; allowed: PostgreSQL, SQLite."


@pytest.mark.slow
def test_check_refuses_any_database_but_postgresql_and_sqlite_without_connecting(transactional_db):
    process = Process("check", **MARIADB)

    assert process.wait() == 1
    assert f"(horsies.E007) {REFUSED}" in process.output
    assert "HINT: Add a PostgreSQL or SQLite database" in process.output
    assert "Traceback" not in process.output


@pytest.mark.parametrize(("version", "is_refused"), [((3, 34, 1), True), ((3, 35, 0), False), ((3, 40, 1), False)])
def test_a_version_of_sqlite_without_returning_is_refused(version, is_refused):
    problem = sqlite_problem("DATABASES['default']", version)

    assert (problem is not None) == is_refused
    if problem is not None:
        assert problem[0] == "DATABASES['default'] is SQLite 3.34.1; allowed: 3.35 or later."


@pytest.mark.slow
@pytest.mark.parametrize("command", ["horsies_worker", "horsies_reaper", "horsies_scheduler"])
def test_no_command_starts_on_an_unsupported_database(transactional_db, command):
    process = Process(command, "--skip-checks", **MARIADB)

    assert process.wait() == 1
    assert [line for line in process.output.splitlines() if REFUSED in line] == process.output.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["horsies_worker", "horsies_status"])
def test_a_command_without_libpq_names_the_missing_package_in_one_line(transactional_db, command):
    process = Process(command, **NO_LIBPQ)

    assert process.wait() == 1
    (line,) = process.output.splitlines()
    assert "DATABASES['default'] needs psycopg 3, which can't be loaded" in line
    assert "pip install 'horsies-django[binary]'" in line
    assert "libpq5" in line


@pytest.mark.slow
def test_every_module_imports_and_sqlite_works_without_libpq(tmp_path):
    script = """
import importlib, json, pkgutil, django
django.setup()
from django.core.management import call_command
import horsies_django
names = [one.name for one in pkgutil.walk_packages(horsies_django.__path__, "horsies_django.")]
for name in names:
    importlib.import_module(name)
call_command("migrate", "--run-syncdb", verbosity=0)
from tests.jobs.tasks import add
handle = add.send(2, 3)
call_command("horsies_worker", drain=True, verbosity=0)
print(json.dumps([len(names), handle.value(timeout=0)]))
"""
    environment = {"DATABASE_URL": f"sqlite:///{tmp_path}/db", "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **NO_LIBPQ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    count, value = json.loads(done.stdout.splitlines()[-1])
    assert count > 100
    assert value == 5
