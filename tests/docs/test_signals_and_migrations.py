"""The code of docs/signals-and-migrations.md passes its own tests, and does what the page says of it."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.docs.recipes import run_module, write_project

FIRST_MIGRATION = """
from django.db import migrations, models

def create(apps, schema_editor):
    apps.get_model("shop", "Order").objects.create(email="Old@example.org")

class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel("order", [
            ("id", models.BigAutoField(primary_key=True)),
            ("email", models.CharField(max_length=100)),
            ("search_text", models.TextField(blank=True)),
        ]),
        migrations.RunPython(create),
    ]
"""

#: What the page says of rows that a migration has sent, and of an open transaction.
MORE_TESTS = """
import threading
import unittest

from django.db import connection, transaction
from django.db.models.signals import post_save
from django.test import TestCase, TransactionTestCase

from horsies_django.models import Task
from horsies_django.testing import all_enqueued, drain, refute_enqueued
from shop.models import Order
from shop.tasks import index_order


class MigrationTests(TestCase):
    def test_a_task_of_a_migration_is_in_the_test_database(self):
        self.assertEqual([call.kwargs for call in all_enqueued()], [{"order_id": Order.objects.get().pk}])
        with self.assertRaises(AssertionError):
            refute_enqueued(index_order)
        drain(raise_errors=True)
        self.assertEqual(Order.objects.get().search_text, "old@example.org")

    def test_an_async_receiver_sends_in_the_transaction(self):
        async def send(sender, instance, **kwargs):
            await index_order.with_options(unique=None, priority=7).asend(instance.pk)

        post_save.connect(send, sender=Order)
        try:
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                Order.objects.create(email="B")
                self.assertEqual(Task.objects.filter(priority=7).count(), 1)
                1 / 0
        finally:
            post_save.disconnect(send, sender=Order)
        self.assertEqual(Task.objects.filter(priority=7).count(), 0)


class TransactionTests(TransactionTestCase):
    @unittest.skipIf(connection.vendor == "sqlite", "one transaction writes at a time")
    def test_a_waiting_task_is_locked_until_the_save_commits(self):
        order = Order.objects.create(email="Before")
        with transaction.atomic():
            order.email = "After"
            order.save()
            ran = []

            def run():
                ran.extend(drain().handles)
                connection.close()

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            self.assertNotIn(Task.objects.get(unique_key__contains=order.pk).pk, [handle.id for handle in ran])
        drain(raise_errors=True)
        order.refresh_from_db()
        self.assertEqual(order.search_text, "after")
"""


@pytest.mark.slow
@pytest.mark.django_db
def test_the_code_of_the_page_does_what_the_page_says(tmp_path):
    (fixture,) = re.findall(r"^```json\n(.*?)^```$", (ROOT / "docs/signals-and-migrations.md").read_text(), re.M | re.S)
    files = {
        "shop/migrations/__init__.py": "",
        "shop/migrations/0001_initial.py": FIRST_MIGRATION,
        "shop/test_more.py": MORE_TESTS,
        "shop/fixtures/orders.json": fixture,
    }
    write_project("signals-and-migrations.md", tmp_path, files)

    output = run_module(tmp_path, "django", "test", "shop")
    assert re.search(r"Ran 6 tests .*\n\nOK", output), output

    migration = tmp_path / "shop" / "migrations" / "0002_index_orders.py"
    migration.write_text(migration.read_text().replace(', ("horsies_django", "0001_initial")', ""))
    run = "from django.core.management import call_command as c; import django; django.setup(); c('migrate', 'shop')"
    (tmp_path / "alone.py").write_text(run)
    (tmp_path / "settings.py").write_text(
        (tmp_path / "settings.py").read_text()
        + 'DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "alone.sqlite3"}}'
    )
    assert "horsies_tasks" in run_module(tmp_path, "alone")
