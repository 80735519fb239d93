"""Releases that meet on one database: old code on the schema of a later release, and new code on an older schema.

``wheels`` keeps the wheel of each release, which is the old code. The new code is this checkout, with two further
migrations.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from horsies_django import __version__
from tests.release.upgrade_project import (
    MIGRATIONS,
    RESULTS,
    SEND,
    Release,
    make_next_release,
    make_project,
    new_database,
)

WHEELS = sorted((Path(__file__).parent / "wheels").glob("*.whl"))

#: The old code by day: the last release but that of this checkout's version. At night all of them.
LAST = next((wheel for wheel in reversed(WHEELS) if f"-{__version__}-" not in wheel.name), None)
OLD = [pytest.param(wheel, marks=() if wheel == LAST else pytest.mark.nightly, id=wheel.name) for wheel in WHEELS]

VENDORS = [pytest.param("sqlite", marks=pytest.mark.nightly), "postgresql"]

#: The commands that need the tables, with their flags.
COMMANDS = (
    "horsies_check_deploy",
    "horsies_prune --dry-run",
    "horsies_queue list",
    "horsies_reaper --once",
    "horsies_schedule list",
    "horsies_scheduler --once",
    "horsies_status --json",
    "horsies_task list",
    "horsies_worker --drain",
)

#: What RESULTS prints after a drain.
ENDED = """
[('COMPLETED', 9), ('FAILED', 1), ('PENDING', 1)]
[('COMPLETED', 2)]
[6] 1
""".strip()

#: Makes a task due that has begun and whose wait is over.
WAIT = """
import django; django.setup()
from django.db.models.functions import Now
from horsies_django.models import Task
from shop.tasks import add

handle = add.schedule(86_400, 1, 2)
Task.objects.filter(pk=handle.id).update(enqueued_at=Now(), waits_for="sleep", claim=1)
"""

pytestmark = pytest.mark.once


def test_a_released_migration_has_not_changed():
    for wheel in WHEELS:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("horsies_django/migrations/0")]
            released = {Path(name).name: archive.read(name) for name in names}

        assert released
        assert {name: (MIGRATIONS / name).read_bytes() for name in released} == released, wheel.name


@pytest.fixture(scope="module", params=OLD)
def old(request, install):
    """An environment with the package of an old release."""
    return install(request.param, extras="[binary]")


@pytest.fixture(scope="module")
def new(build, install, tmp_path_factory):
    """An environment with the package of the next release, which has further migrations."""
    return install(build(make_next_release(tmp_path_factory.mktemp("next") / "checkout"))[1], extras="[binary]")


@pytest.fixture(params=VENDORS)
def releases(request, old, new, tmp_path) -> Iterator[tuple[Release, Release]]:
    """The project on both, with one empty database."""
    if request.param == "postgresql" and not os.environ.get("DATABASE_URL", "").startswith("postgres"):
        pytest.skip("runs with the tests on PostgreSQL")
    project = make_project(tmp_path / "site")
    with new_database(request.param, tmp_path) as url:
        yield Release(old, project, url), Release(new, project, url)


@pytest.mark.slow
def test_the_old_code_runs_on_the_new_schema(releases):
    old, new = releases
    new.manage("migrate -v0")

    old.evaluate(SEND)
    for command in COMMANDS:
        old.manage(command)
    old.manage("horsies_worker --drain")

    assert old.evaluate(RESULTS) == ENDED


@pytest.mark.slow
def test_a_task_that_has_waited_does_not_hold_up_the_old_code(releases):
    old, new = releases
    new.manage("migrate -v0")
    new.evaluate(WAIT)

    old.manage("horsies_worker --drain --no-scheduler")

    assert old.evaluate(RESULTS).splitlines()[0] == "[('COMPLETED', 1)]"


@pytest.mark.slow
@pytest.mark.parametrize("sender", ["old", "new"])
def test_each_code_runs_what_the_other_has_sent(releases, sender):
    old, new = releases
    new.manage("migrate -v0")
    sending, running = (old, new) if sender == "old" else (new, old)

    sending.evaluate(SEND)
    running.manage("horsies_scheduler --once")
    running.manage("horsies_worker --drain")

    assert sending.evaluate(RESULTS) == ENDED


@pytest.mark.nightly
@pytest.mark.slow
def test_the_new_code_refuses_the_old_schema_in_one_line_until_it_is_migrated(releases):
    old, later = releases
    old.manage("migrate -v0")
    old.evaluate(SEND)
    missing = re.findall(r"^ \[ \] (\S+)$", later.manage("showmigrations horsies_django"), re.MULTILINE)

    refusal = f"Database 'default' lacks the migration {missing[0]} of horsies_django: run `manage.py migrate` first."
    for command in COMMANDS:
        name, *flags = command.split()
        lines = later.refuses(" ".join([name, "--skip-checks", *flags]))  # they warn about the settings of SQLite
        assert lines == [f"CommandError: {refusal}"], command

    later.manage("migrate -v0")
    later.manage("horsies_scheduler --once")
    later.manage("horsies_worker --drain")
    assert later.evaluate(RESULTS) == ENDED
