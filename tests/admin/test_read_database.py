"""``OPTIONS["read_database"]``: lists, charts and metrics read a replica; pages of rows and actions do not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from django.core import checks
from django.urls import reverse

from horsies_django import TaskStatus
from horsies_django.models import Task
from tests.conftest import database_url, wait_until
from tests.faults.conftest import own_cluster  # noqa: F401  # a fixture
from tests.faults.server import Replica
from tests.jobs.tasks import echo

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

READER = "import sys, django; django.setup(); from tests.admin.reads import main; main(sys.argv[1:])"
LISTS = ["overview", "task", "workflow", "queue", "worker", "errorgroup"]
PAGES = [
    *(reverse(f"admin:horsies_django_{name}_changelist") for name in LISTS),
    reverse("admin:horsies_django_task_names"),
]
TASKS = reverse("admin:horsies_django_task_changelist")


def read(*pages, **environment):
    """Open pages in a process with a replica; return what it tells of each."""
    command = [sys.executable, "-c", READER, *pages]
    variables = {**os.environ, "DATABASE_URL": database_url(), **environment}
    variables["DJANGO_SETTINGS_MODULE"] = "tests.admin.replica_settings"
    process = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert process.returncode == 0, process.stderr
    return dict(zip(pages, map(json.loads, process.stdout.splitlines()), strict=True))


def test_lists_and_charts_read_the_replica_and_say_so():
    echo.send(1)

    for page, seen in read(*PAGES).items():
        assert seen["status"] == 200, page
        assert seen["replica"] > 0, page
        assert seen.get("default", 0) <= 3, page  # the names that filters offer
        assert seen["note"] == "database replica", page


def test_the_metrics_read_the_replica_but_for_the_upkeep_of_the_primary():
    echo.send(1)

    (seen,) = read("/horsies/metrics").values()

    assert seen["status"] == 200
    assert seen["replica"] > 3
    assert seen["default"] == 1


def test_the_page_of_a_task_and_actions_use_the_primary():
    echo.send(1)

    page, action = read(f"{TASKS}{{task}}/change/", f"POST {TASKS}").values()

    assert (page["status"], action["status"]) == (200, 302)
    assert not page.get("replica")
    assert not action.get("replica")
    assert Task.objects.get().status == TaskStatus.CANCELLED


def test_a_page_says_how_old_the_last_change_of_its_replica_is(own_cluster):  # noqa: F811  # a fixture
    with Replica(own_cluster) as replica:
        echo.send(1)
        wait_until(replica.has_caught_up, limit=40, what="the replica has the task")

        (seen,) = read(TASKS, REPLICA_URL=replica.url).values()

    assert seen["replica"] > 0
    assert re.fullmatch(r"replica replica, whose last change is [\d.]+ m?s old", seen["note"])


def test_an_alias_that_is_none_is_named(settings):
    default = settings.TASKS["default"]
    settings.TASKS = {"default": default | {"OPTIONS": default["OPTIONS"] | {"read_database": "nowhere"}}}

    messages = [error.msg for error in checks.run_checks() if error.id == "horsies.E002"]

    assert messages == ["TASKS['default']['OPTIONS']['read_database'] is 'nowhere'; allowed: 'default'."]
