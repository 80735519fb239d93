"""With a million tasks, each admin page executes few statements and scans no whole big table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from horsies_django.models import Task
from tests.admin.scale.builder import build
from tests.admin.scale.pages import Pages, Request, horsies_models
from tests.admin.scale.plans import SCANNED, big_tables, problems, statements
from tests.admin.scale.sizes import TASKS
from tests.database import separate_database
from tests.jobs.tasks import echo

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.django_db]

#: How many statements a page may execute. A search of arguments reads its rows in a few batches.
STATEMENTS = 15

EACH_MODEL = [pytest.param(model, id=model.__name__) for model in horsies_models()]


@pytest.fixture(scope="module")
def large(request, django_db_setup, django_db_blocker) -> Iterator[set[str]]:
    """Connect to a database of many tasks, and yield the names of its big tables. ``--reuse-db`` keeps it."""
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL is promised to cope with so many tasks")
    is_kept = request.config.getoption("reuse_db")
    with django_db_blocker.unblock(), separate_database("large", is_kept=is_kept):
        call_command("migrate", verbosity=0)
        if not Task.objects.exists():
            build(number=TASKS)
            # The last row. This process knows its name, unlike those of the others: it can be run again.
            ended = {"status": "COMPLETED", "attempt": 1, "claim": 1, "completed_at": timezone.now()}
            Task.objects.create(task_name=echo.module_path, **ended)
        yield big_tables()


@pytest.fixture(scope="module")
def operator(large) -> Client:
    client = Client(raise_request_exception=False)
    user, _ = get_user_model().objects.get_or_create(username="operator", is_staff=True, is_superuser=True)
    client.force_login(user)
    return client


@dataclass
class Measured:
    """A request, and measurements of its response."""

    request: Request
    status: int
    leads_to: str  # the address of a redirect
    statements: int
    milliseconds: float
    plan_problems: list[str]

    @property
    def is_refused_form(self) -> bool:
        """Whether a task can't be run again: instead of the form it shows the page of the task, with the reason."""
        return self.status == 302 and self.request.address == self.leads_to.replace("/change/", "/run-again/")

    @property
    def problems(self) -> list[str]:
        """Return what is wrong with the page."""
        found = list(self.plan_problems)
        if self.status != 200 and not self.is_refused_form:
            found.append(f"status {self.status} {self.leads_to}")
        if self.statements > STATEMENTS and not self.request.data:  # a confirmation counts for a limited time
            found.append(f"{self.statements} statements")
        return [f"{self.request}: {problem}" for problem in found]


def measure(client: Client, request: Request, big: set[str]) -> Measured:
    """Send the request, check the plans of its statements, and measure its time."""
    cache.clear()
    began = time.perf_counter()
    with statements() as recorded:
        response = request.send(client)
    spent = 1000 * (time.perf_counter() - began)
    if f"q={quote('…')}" in request.address:
        big = big_tables(SCANNED)
    found = list(problems(recorded, big)) if response.status_code == 200 or not request.data else []
    return Measured(request, response.status_code, response.get("Location", ""), len(recorded), spent, found)


def check(client: Client, requests: Iterable[Request], big: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Measure all the requests, print the slowest, and fail with all problems."""
    measured = [measure(client, request, big) for request in dict.fromkeys(requests)]
    # Skip pages that even a superuser may not open, and actions on few rows, which run without a confirmation.
    measured = [each for each in measured if each.status != 403 and not (each.status == 302 and each.request.data)]
    with capsys.disabled():
        print(f"\n{len(measured)} pages, at a load of {os.getloadavg()[0]:.1f}; the slowest:")
        for each in sorted(measured, key=lambda each: -each.milliseconds)[:8]:
            print(f"{each.milliseconds:7.0f} ms {each.statements:3} statements  {str(each.request)[:110]}")
    found = [problem for each in measured for problem in each.problems]
    assert not found, "\n".join([f"{len(found)} problems:", *found])


def test_the_index_is_cheap(operator, large, capsys):
    addresses = [reverse("admin:index"), reverse("admin:app_list", args=["horsies_django"])]

    check(operator, map(Request, addresses), large, capsys)


@pytest.mark.parametrize("model", EACH_MODEL)
def test_each_filter_order_search_and_page_of_a_list_is_cheap(model, operator, large, capsys):
    pages = Pages(operator, model)

    check(operator, [*pages.without_row(), *pages.lists()], large, capsys)


@pytest.mark.parametrize("model", EACH_MODEL)
def test_each_pair_of_filters_is_cheap(model, operator, large, capsys):
    check(operator, Pages(operator, model).pairs(most=50), large, capsys)


@pytest.mark.parametrize("model", EACH_MODEL)
def test_the_pages_of_ordinary_and_worst_rows_are_cheap(model, operator, large, capsys):
    check(operator, Pages(operator, model).of_rows(), large, capsys)


@pytest.mark.parametrize("model", EACH_MODEL)
def test_confirmation_pages_for_all_matching_rows_are_cheap(model, operator, large, capsys):
    check(operator, Pages(operator, model).confirmations(), large, capsys)
