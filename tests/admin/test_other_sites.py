"""The admin works on any site, prefix, database and time zone, and under a strict Content-Security-Policy."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from horsies_django.models import Queue, Task, Worker
from tests.admin.pages import pages_of
from tests.conftest import ROOT, database_url
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def operator(client):
    """Log a superuser in."""
    client.force_login(get_user_model().objects.create_superuser("operator"))
    return client


@pytest.fixture
def running():
    """Return a task that a worker runs."""
    handle = tasks.noop.send()
    Worker.objects.register("w-1", "", "host", 1, threads=8, async_slots=100)
    with transaction.atomic():
        Task.objects.claim("w-1", start=1)
    return handle


@pytest.mark.slow
@pytest.mark.urls("tests.admin.other_database_urls")
def test_every_page_works_on_a_custom_site_and_links_to_no_other(operator, running):
    for address in pages_of("ops", running.id, "w-1"):
        assert address.startswith("/deep/below/ops/")
        html = operator.get(address).content.decode()
        links = re.findall(r'(?:href|action)="([^"]+)"', html)
        assert any(link.startswith("/deep/below/ops/") for link in links), address
        assert [link for link in links if link.startswith("/admin/")] == [], address


@pytest.mark.urls("tests.admin.other_database_urls")
def test_actions_work_on_a_custom_site_and_redirect_back_to_it(operator):
    handle = tasks.noop.send()

    response = operator.post(reverse("ops:horsies_django_task_do", args=[handle.id, "cancel"]))
    assert response.url == reverse("ops:horsies_django_task_change", args=[handle.id])
    response = operator.post(reverse("ops:horsies_django_queue_do", args=["~emails", "pause"]))
    assert response.url == reverse("ops:horsies_django_queue_change", args=[Queue.objects.get().pk])

    assert handle.status() == "CANCELLED"
    assert Queue.objects.get().paused


@pytest.mark.slow
def test_the_admin_reads_and_writes_the_queue_in_another_database(tmp_path):
    completed = subprocess.run(
        [sys.executable, "-m", "tests.admin.other_database"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url(), "OTHER_DATABASE": str(tmp_path / "default.sqlite3")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert "all is well" in completed.stdout, completed.stdout + completed.stderr


def test_pages_show_times_in_the_active_time_zone(operator, running):
    Worker.objects.update(started_at=datetime(2026, 1, 31, 20, 30, tzinfo=UTC))
    Task.objects.update(sent_at=datetime(2026, 1, 31, 20, 30, tzinfo=UTC))

    with timezone.override("Asia/Tokyo"):
        of_worker = operator.get(reverse("admin:horsies_django_worker_change", args=["w-1"])).content.decode()
        of_task = operator.get(reverse("admin:horsies_django_task_change", args=[running.id])).content.decode()

    assert "2026-02-01 05:30:00" in of_worker
    assert "2026-02-01 05:30:00" in of_task


@pytest.mark.slow
def test_every_page_has_a_strict_policy_and_no_inline_scripts_or_styles(operator, running):
    for address in pages_of("admin", running.id, "w-1"):
        response = operator.get(address)
        html = response.content.decode()
        assert "script-src 'self'" in response.headers["Content-Security-Policy"]
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)[^>]*>", html), address
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", html), address
