"""A project of the blocks of a page that begin with the name of a file, and programs that run in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from tests.conftest import ROOT, database_url

SETTINGS = """
import environ
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "horsies_django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env().db()}
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend"}}
"""

#: Follows the settings of a page. Other projects use the server at the same time.
TEST_DATABASE = """
DATABASES["default"]["TEST"] = {{"NAME": "{name}" if "postgresql" in DATABASES["default"]["ENGINE"] else None}}
"""


def write_project(page: str, folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a page, and those that the page takes for granted."""
    text = (ROOT / "docs" / page).read_text()
    named = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.M | re.S))
    named["settings.py"] = SETTINGS + named.get("settings.py", "") + TEST_DATABASE.format(name=f"recipes_{uuid4().hex}")
    for name, content in ({"shop/__init__.py": ""} | named | dict(files)).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(content)


def run_module(folder: Path, *command: str) -> str:
    """Run ``python -m`` in the project, and return what it prints."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "DJANGO_SETTINGS_MODULE": "settings",
        "DATABASE_URL": database_url(),
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
    }
    line = [sys.executable, "-m", *command]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr
