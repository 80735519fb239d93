"""The views of docs/asgi.md work on Django's ASGI handler."""

from __future__ import annotations

import re

import pytest

from tests.docs.recipes import run_module, write_project

MODELS = """
from django.db import models

class Order(models.Model):
    email = models.CharField(max_length=100)
"""

TASKS = """
from horsies_django import task
from shop.models import Order

@task(takes_context=True)
def make_report(context, pages: int) -> int:
    if Order.objects.filter(email="broken").exists():
        raise ValueError("broken")
    context.progress(pages, pages)
    return pages
"""

URLS = """
from django.urls import path
from shop import views

urlpatterns = [path(view.__name__, view) for view in (views.order_report, views.buy, views.report_now, views.progress)]
"""

TESTS = """
import asyncio

from django.test import TransactionTestCase, override_settings

from horsies_django import TaskHandle
from horsies_django.models import Task
from horsies_django.testing import adrain
from shop.models import Order


@override_settings(ROOT_URLCONF="shop.urls", ALLOWED_HOSTS=["testserver"])
class AsgiTests(TransactionTestCase):
    async def get(self, path):
        return await self.async_client.get(path)

    async def get_while_a_worker_runs(self, path):
        response = asyncio.create_task(self.get(path))
        while not (response.done() or await Task.objects.aexists()):
            await asyncio.sleep(0.01)
        await adrain()
        return await response

    async def test_a_view_sends(self):
        response = await self.get("/order_report")

        self.assertEqual(response.status_code, 202)
        self.assertIsNotNone(await TaskHandle(response.json()["id"]).astatus())

    async def test_a_view_sends_in_a_transaction(self):
        response = await self.get("/buy?email=ada")
        await adrain(raise_errors=True)

        self.assertEqual(await TaskHandle(response.json()["id"]).avalue(0), (await Order.objects.aget()).pk)

    async def test_a_view_waits(self):
        response = await self.get_while_a_worker_runs("/report_now")

        self.assertEqual(response.json(), {"pages": 5})

    async def test_a_view_that_waits_reports_a_failure(self):
        await Order.objects.acreate(email="broken")

        response = await self.get_while_a_worker_runs("/report_now")

        self.assertEqual((response.status_code, response.json()), (500, {"error": "UNHANDLED_EXCEPTION"}))

    async def test_a_view_streams(self):
        lines = (await self.get("/progress")).streaming_content

        self.assertEqual(await anext(lines), b"0\\n")
        await adrain(raise_errors=True)
        self.assertEqual([line async for line in lines], [b"COMPLETED\\n"])
"""


@pytest.mark.slow
@pytest.mark.django_db
def test_the_views_of_the_page_send_wait_and_stream(tmp_path):
    write_project(
        "asgi.md",
        tmp_path,
        {"shop/models.py": MODELS, "shop/tasks.py": TASKS, "shop/urls.py": URLS, "shop/tests.py": TESTS},
    )
    output = run_module(tmp_path, "django", "test", "shop")
    assert re.search(r"Ran 5 tests .*\n\nOK", output), output
