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

#: A test of a project that has run its tasks at once until now.
OLD_TESTS = """
from django.test import TestCase
from shop.models import Mail
from shop.tasks import send_mail

class OldTests(TestCase):
    def test_a_mail(self):
        send_mail.enqueue("ada@example.org")
        self.assertEqual(Mail.objects.count(), 1)
"""


@pytest.mark.slow
@pytest.mark.django_db
def test_the_recipes_pass(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text()
    files = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", page, re.M | re.S))
    files |= {"shop/__init__.py": "", "shop/models.py": MODELS, "settings.py": SETTINGS}
    files |= {"old/__init__.py": "", "old/tests.py": OLD_TESTS}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(*command: str) -> str:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "DJANGO_SETTINGS_MODULE": "settings",
            "DATABASE_URL": database_url(),
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        }
        line = [sys.executable, "-m", *command]
        done = subprocess.run(
            line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout + done.stderr

    output = run("pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert re.search(r"\b9 passed\b", output), output

    output = run("django", "test", "old", "--testrunner", "shop.runner.ImmediateRunner")
    assert re.search(r"Ran 1 test .*\n\nOK", output), output
