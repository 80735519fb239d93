"""The recipes of docs/testing.md are a test suite that passes."""

from __future__ import annotations

import re

import pytest

from tests.docs.recipes import run_module, write_project

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
    write_project("testing.md", tmp_path, {"shop/models.py": MODELS, "old/__init__.py": "", "old/tests.py": OLD_TESTS})

    output = run_module(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert re.search(r"\b11 passed\b", output), output

    output = run_module(tmp_path, "django", "test", "old", "--testrunner", "shop.runner.ImmediateRunner")
    assert re.search(r"Ran 1 test .*\n\nOK", output), output
