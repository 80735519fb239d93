"""``horsies_worker --reload``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.conftest import ROOT, database_url, wait_until

PROJECT = """
import os, sys
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "horsies_django", "shop"]
sys.path.insert(0, {folder!r})
import environ
DATABASES = {{"default": environ.Env().db()}}
TASKS = {{"default": {{"BACKEND": "horsies_django.backend.HorsiesBackend"}}}}
"""

TASK = """
from horsies_django import task

@task
def version() -> int:
    return {number}
"""

SEND = "import django; django.setup()\nfrom shop.tasks import version\nprint(version.send().value(30))"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(TASK.format(number=1))
    (tmp_path / "shop_settings.py").write_text(PROJECT.format(folder=str(tmp_path)))
    return tmp_path


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_changed_code_after_its_restart_and_survives_broken_code(project, tmp_path):
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop_settings",
        "DATABASE_URL": database_url(),
        "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",  # a change within a second would be hidden by the cache
    }
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "django", "horsies_worker", "--reload", "--processes", "1"]
    worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def said(text):
        return lambda: text in Path(log.name).read_text()

    def send():
        done = subprocess.run([sys.executable, "-c", SEND], env=environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    try:
        wait_until(said("worker ready"))
        assert send() == 1

        (project / "shop" / "tasks.py").write_text("no Python")
        wait_until(said("It starts again when code changes."))
        (project / "shop" / "tasks.py").write_text(TASK.format(number=2))
        wait_until(lambda: Path(log.name).read_text().count("worker ready") >= 2)
        assert send() == 2

        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        log.close()


def test_reload_is_refused_inside_another_program():
    with pytest.raises(CommandError, match="--reload needs a process of its own"):
        call_command("horsies_worker", "--reload")
