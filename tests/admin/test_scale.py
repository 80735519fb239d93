"""With a million tasks each page of the admin takes few statements, and none of them reads a whole big table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from horsies_django.models import Task
from tests.admin.scale.builder import build
from tests.admin.scale.pages import Pages, Request, ours
from tests.admin.scale.plans import big_tables, faults, statements

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.django_db]

#: Statements of a page.
STATEMENTS = 15

#: Statements of a page that asks about all that match: it counts for a moment.
MORE = 25

MODELS = ours()
NAMES = [model.__name__ for model in MODELS]


@pytest.fixture(scope="module")
def large(request, django_db_setup, django_db_blocker) -> Iterator[set[str]]:
    """Be on a database of a million tasks, and yield the names of its big tables. ``--reuse-db`` keeps it."""
    if connection.vendor != "postgresql":
        pytest.skip("what is promised of a million tasks is promised of PostgreSQL")
    with django_db_blocker.unblock(), own_database("large", is_kept=request.config.getoption("reuse_db")):
        call_command("migrate", verbosity=0)
        if not Task.objects.exists():
            build()
        yield big_tables()


@contextmanager
def own_database(suffix: str, *, is_kept: bool) -> Iterator[None]:
    """Be on a database of one's own, beside that of the tests."""
    before = connection.settings_dict["NAME"]
    own = f"{before}_{suffix}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [own])
        if not cursor.fetchone():
            cursor.execute(f'CREATE DATABASE "{own}"')
    _go_to(own)
    try:
        yield
    finally:
        _go_to(before)
        if not is_kept:
            with connection.cursor() as cursor:
                cursor.execute(f'DROP DATABASE "{own}"')


def _go_to(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name


@pytest.fixture(scope="module")
def operator(large) -> Client:
    client = Client(raise_request_exception=False)
    user, _ = get_user_model().objects.get_or_create(username="operator", is_staff=True, is_superuser=True)
    client.force_login(user)
    return client


@dataclass
class Seen:
    """A page, as it was answered."""

    request: Request
    status: int
    statements: int
    milliseconds: float
    faults: list[str]

    @property
    def complaints(self) -> list[str]:
        """What is wrong with it."""
        found = list(self.faults)
        if self.status != 200:
            found.append(f"status {self.status}")
        if self.statements > (MORE if self.request.data else STATEMENTS) and not self.request.counts:
            found.append(f"{self.statements} statements")
        return [f"{self.request}: {fault}" for fault in found]


def see(client: Client, request: Request, big: set[str]) -> Seen:
    """Ask for the page, look at the plans of its statements, and note how long it took to be read."""
    cache.clear()
    began = time.perf_counter()
    with statements() as noted:
        status = request.send(client).status_code
    spent = 1000 * (time.perf_counter() - began)
    return Seen(request, status, len(noted), spent, list(faults(noted, big)) if status == 200 else [])


def look(client: Client, requests: Iterable[Request], big: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Look at all of them, show what they took, and fail with all that is wrong."""
    seen = [see(client, request, big) for request in dict.fromkeys(requests)]
    # What nobody may is no page, nor what is done without a question, which is to few.
    seen = [each for each in seen if each.status != 403 and not (each.status == 302 and each.request.data)]
    with capsys.disabled():
        print(f"\n{len(seen)} pages, at a load of {os.getloadavg()[0]:.1f}; those that took longest:")
        for each in sorted(seen, key=lambda each: -each.milliseconds)[:8]:
            print(f"{each.milliseconds:7.0f} ms {each.statements:3} statements  {str(each.request)[:110]}")
    complaints = [complaint for each in seen for complaint in each.complaints]
    assert not complaints, "\n".join([f"{len(complaints)} complaints:", *complaints])


def test_the_index_is_cheap_with_a_million_tasks(operator, large, capsys):
    addresses = [reverse("admin:index"), reverse("admin:app_list", args=["horsies_django"])]

    look(operator, map(Request, addresses), large, capsys)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_each_filter_order_search_and_page_of_a_list_is_cheap(model, operator, large, capsys):
    pages = Pages(operator, model)

    look(operator, [*pages.without_row(), *pages.lists()], large, capsys)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_each_pair_of_filters_is_cheap(model, operator, large, capsys):
    look(operator, Pages(operator, model).pairs(most=50), large, capsys)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_pages_of_ordinary_and_worst_rows_are_cheap(model, operator, large, capsys):
    look(operator, Pages(operator, model).of_rows(), large, capsys)


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_confirmation_pages_for_all_matching_rows_are_cheap(model, operator, large, capsys):
    look(operator, Pages(operator, model).asked_of_all(), large, capsys)
