"""The project in which the commands of the pages run: a site named ``shop``, as the pages assume it."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.conftest import ROOT
from tests.docs.commands import PAGES
from tests.docs.terminal import Terminal

#: The task that ``docs/inspecting.md`` runs again, and the one that stands for ``ID`` in tables.
FAILED = "01991f3e-7c52-7a01-b6c5-0d6b5a3f9e11"
SCHEDULED = "01991f3e-7c52-7a01-b6c5-0d6b5a3f9e12"

SETTINGS = """
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}
INSTALLED_APPS += ["shop"]
TASKS["default"]["QUEUES"] += ["long", "reports"]
TASKS["default"]["OPTIONS"] = {"recovery": {"check_interval_ms": 1000}}
"""

TASKS = """
from smtplib import SMTPException


@task(queue_name="emails", exception_mapper={SMTPException: "SMTP_DOWN"})
def remind(user: int) -> None:
    raise SMTPException(user)


@task(name="emails.send_receipt")
def mail_receipt(order_id: int = 1) -> None: ...


@task
def sweep() -> None: ...


@task
def rebuild_index() -> None: ...
"""

#: Writes the rows that the commands are about.
ROWS = f"""
from datetime import timedelta

import django
from django.core.management import call_command
from django.utils import timezone

django.setup()

from horsies_django.models import Schedule
from horsies_django.testing import drain
from shop.tasks import rebuild_index, remind

remind.with_options(task_id="{FAILED}").send(user=7)
remind.send(user=9)
drain()
rebuild_index.send().cancel()
remind.with_options(task_id="{SCHEDULED}").schedule(86_400, user=8)
remind.with_options(good_until=timezone.now() + timedelta(milliseconds=20)).send(user=6)
Schedule.objects.create(name="sweep", task_name="shop.tasks.sweep", timing="every:1")
call_command("horsies_scheduler", once=True, verbosity=0)
"""


def copy_checkout(folder: Path) -> Path:
    """Copy what a source distribution has."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    folder.mkdir()
    for pattern in [*build["targets"]["sdist"]["include"], "pyproject.toml"]:
        for path in ROOT.glob(pattern):
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, folder)
    return folder


def python_block(page: str, start: str) -> str:
    """Return the Python block of a page that begins with this line."""
    (block,) = re.findall(rf"^```python\n({re.escape(start)}\n.*?)^```$", PAGES[page], re.M | re.S)
    return str(block)


def make_project(folder: Path, environment: dict[str, str]) -> Path:
    """Create the project on SQLite, with tables and rows."""
    folder.mkdir()
    with Terminal(folder, environment) as terminal:
        terminal.run("django-admin startproject shop .")
        _append(folder / "shop" / "settings.py", python_block("README.md", "# settings.py"), SETTINGS)
        _append(
            folder / "shop" / "tasks.py",
            python_block("README.md", "# shop/tasks.py"),
            python_block("docs/schedules.md", "from horsies_django import Cron, Every, schedule, task"),
            TASKS,
        )
        (folder / "rows.py").write_text(ROWS)
        terminal.run("python manage.py migrate")
        write_rows(terminal)
    return folder


def write_rows(terminal: Terminal) -> None:
    """Write the rows that the commands are about."""
    terminal.run("DJANGO_SETTINGS_MODULE=shop.settings python rows.py")


@contextmanager
def own_database(project: Path) -> Iterator[None]:
    """Give the queue a database of its own, as ``docs/deploying.md`` does, on the server of these tests."""
    names = {alias: f"docs_{alias}_{uuid.uuid4().hex[:12]}" for alias in ("default", "queue")}
    block = python_block("docs/deploying.md", "DATABASES = {")
    with _databases(project, list(names.values())) as server:
        own = f"for alias, name in {names!r}.items():\n    DATABASES[alias] |= {server!r} | {{'NAME': name}}\n"
        queues = "TASKS['default'] |= {'QUEUES': []}\n"
        _append(project / "shop" / "settings.py", block, own, queues)
        yield


@contextmanager
def _databases(project: Path, names: list[str]) -> Iterator[dict[str, object]]:
    """Yield the settings of a server that has these databases: PostgreSQL if these tests run on it, else SQLite."""
    url = os.environ.get("DATABASE_URL", "")
    if not url.startswith("postgres"):
        yield {"ENGINE": "django.db.backends.sqlite3"}
        return
    from environ import Env

    with psycopg.connect(url, autocommit=True) as connection:
        for name in names:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            yield Env.db_url_config(url)
        finally:
            for name in names:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _append(path: Path, *parts: str) -> None:
    before = path.read_text() if path.exists() else ""
    path.write_text("\n".join([before, *parts]))
