"""The recipes of docs/testing.md are a test suite that passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, database_url

SETTINGS = """
import environ
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "horsies_django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env().db()}
DATABASES["default"]["TEST"] = {"NAME": "recipes" if "postgresql" in DATABASES["default"]["ENGINE"] else None}
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend"}}
"""

MODELS = """
from django.db import models

class Mail(models.Model):
    to = models.CharField(max_length=100)
"""


@pytest.mark.slow
@pytest.mark.django_db
def test_the_recipes_pass(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text()
    files = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", page, re.M | re.S))
    files |= {"shop/__init__.py": "", "shop/models.py": MODELS, "settings.py": SETTINGS}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "DJANGO_SETTINGS_MODULE": "settings",
            "DATABASE_URL": database_url(),
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert re.search(r"\b9 passed\b", done.stdout), done.stdout + done.stderr
