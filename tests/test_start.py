"""What ``django.setup()`` imports: a process that only sends tasks, and a web process with the admin."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.once

PROGRAM = """
import json, sys
import django
from django.conf import settings

apps, kwargs = json.loads(sys.argv[1]), {}
if "horsies_django" in apps:
    kwargs["TASKS"] = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend"}}
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(INSTALLED_APPS=apps, DATABASES=databases, **kwargs)
django.setup()
print(json.dumps(sorted(sys.modules)))
"""

AUTH = ["django.contrib.contenttypes", "django.contrib.auth"]
ADMIN = [*AUTH, "django.contrib.admin", "django.contrib.messages", "django.contrib.sessions"]


def imported(apps: list[str]) -> set[str]:
    """Return the modules that a new process has imported once Django has started with these apps."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(apps)]
    return set(json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout))


@pytest.mark.parametrize(
    ("apps", "limit"),
    [pytest.param(AUTH, 197, marks=pytest.mark.slow), (ADMIN, 221)],
    ids=["without the admin", "with the admin"],
)
def test_the_start_of_django_imports_few_modules(apps, limit):
    new = imported([*apps, "horsies_django"]) - imported(apps)

    assert len(new) <= limit, sorted(new)


@pytest.mark.slow
def test_a_process_without_the_admin_imports_what_a_send_needs():
    ours = {name for name in imported([*AUTH, "horsies_django"]) if name.startswith(("horsies_django.", "croniter"))}

    folders = {name.split(".")[1] for name in ours if name.startswith("horsies_django.")}
    assert not folders & {"admin", "batches", "ops", "reaper", "schedules", "worker"}
    assert not ours & {"croniter", "horsies_django.workflows.compile", "horsies_django.workflows.workflow"}


@pytest.mark.slow
def test_every_public_name_of_the_package_is_listed_and_loads_when_it_is_used():
    program = """
import django
from django.conf import settings

settings.configure()
django.setup()
import horsies_django

names = set(horsies_django.__all__)
assert names <= set(dir(horsies_django))
from horsies_django import *

assert names <= set(globals()), names - set(globals())
try:
    horsies_django.missing
except AttributeError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (process.stdout, process.stderr) == ("module 'horsies_django' has no attribute 'missing'\n", "")
