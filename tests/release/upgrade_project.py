"""A project that runs on the package of one release or of another, with a database that both use."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from tests.conftest import ROOT
from tests.release.installed import Installed

SETTINGS = """
import environ

SECRET_KEY = "for-a-test"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "horsies_django", "shop"]
DATABASES = {"default": environ.Env().db_url("QUEUE_URL")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": []}}
"""

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
execute_from_command_line(sys.argv)
"""

TASKS = """
from horsies_django import Every, schedule, task


@task
def add(a: int, b: int) -> int:
    return a + b


@task(max_attempts=2, backoff=0)
def fail() -> None:
    raise ValueError("on purpose")


@task(atomic=True, max_concurrency=1)
def limited() -> str:
    return "limited"


schedule("daily", add, Every(days=1), kwargs={"a": 1, "b": 1})
"""

#: Sends tasks, a workflow and a batch.
SEND = """
import django; django.setup()
from horsies_django import Batch, Workflow
from shop.tasks import add, fail, limited

add.send(1, 2)
add.send_many({"a": 1, "b": number} for number in range(3))
add.with_options(unique_key="once", priority=5).send(3, 4)
add.schedule(86_400, 5, 6)
limited.send()
fail.send()
first = add.node()(a=1, b=2)
second = add.node()(a=first, b=3)
Workflow("sum", [first, second], output=second).start()
with Batch("batch") as batch:
    batch.add(add, 1, b=1)
"""

#: Prints what has become of them.
RESULTS = """
import django; django.setup()
from collections import Counter
from horsies_django.models import Schedule, Task, TaskAttempt, Workflow

for rows in (Task.objects.filter(schedule_id=None), Workflow.objects):
    print(sorted(Counter(str(row.status) for row in rows.all()).items()))
print(sorted(row.result["ok"] for row in Workflow.objects.filter(is_batch=False)), Schedule.objects.count())
"""

#: A migration of the next release, which is additive.
COLUMNS = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("horsies_django", "{latest}")]
    operations = [
        migrations.AddField("task", "region", models.CharField(max_length=20, null=True)),
        migrations.AddField("taskattempt", "region", models.CharField(max_length=20, default="", db_default="")),
        migrations.AddField("workflow", "is_archived", models.BooleanField(default=False, db_default=False)),
        migrations.AddField("queue", "is_archived", models.BooleanField(default=False, db_default=False)),
        migrations.CreateModel("Region", [("id", models.BigAutoField(primary_key=True))]),
    ]
"""

INDEX = """
from django.db import migrations, models

from horsies_django.db.online import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("horsies_django", "{latest}")]
    operations = [AddIndexOnline("task", models.Index(fields=["region", "id"], name="horsies_task_region"))]
"""

MIGRATIONS: Final = ROOT / "horsies_django" / "migrations"


def latest_migration() -> str:
    return max(path.stem for path in MIGRATIONS.glob("[0-9]*.py"))


def make_next_release(folder: Path) -> Path:
    """Copy the package with two further migrations; return the copy."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "horsies_django", folder / "horsies_django", ignore=shutil.ignore_patterns("__pycache__"))
    latest = latest_migration()
    for suffix, text in {"columns": COLUMNS, "index": INDEX}.items():
        name = f"{int(latest[:4]) + 1:04}_{suffix}"
        (folder / "horsies_django" / "migrations" / f"{name}.py").write_text(text.format(latest=latest))
        latest = name
    return folder


def make_project(folder: Path) -> Path:
    """Create the project, without a database."""
    (folder / "shop").mkdir(parents=True)
    (folder / "manage.py").write_text(MANAGE)
    for name, text in {"__init__": "", "settings": SETTINGS, "tasks": TASKS}.items():
        (folder / "shop" / f"{name}.py").write_text(text)
    return folder


@contextmanager
def new_database(vendor: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a new database: a file, or one on the server of these tests."""
    if vendor == "sqlite":
        yield f"sqlite:///{folder}/queue.sqlite3"
        return
    url, name = os.environ["DATABASE_URL"], f"upgrade_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            yield re.sub(r"(?<=/)\w+(?=\?|$)", name, url, count=1)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


class Release:
    """The project on the package of one release."""

    def __init__(self, installed: Installed, project: Path, url: str) -> None:
        self._installed, self._project = installed, project
        installed.environment |= {"QUEUE_URL": url, "DJANGO_SETTINGS_MODULE": "shop.settings"}

    def manage(self, command: str) -> str:
        """Run a command of ``manage.py`` and return its output."""
        return self._installed.run(["manage.py", *command.split()], self._project)

    def refuses(self, command: str) -> list[str]:
        """Run a command that must exit with status 1, and return the lines of its output."""
        return self._installed.run(["manage.py", *command.split()], self._project, status=1).splitlines()

    def evaluate(self, code: str) -> str:
        """Run code and return what it prints."""
        return self._installed.evaluate(code, self._project)
