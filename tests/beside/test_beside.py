"""Pages, sends and workers of a project that has other well-known apps installed."""

from importlib.metadata import version

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse
from silk.models import Request
from wagtail.models import Locale, Page

from horsies_django import TaskStatus
from horsies_django.models import Task
from tests.admin.browser.pages import create_pages
from tests.beside.models import Note
from tests.beside.tasks import write_note
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin(client):
    client.force_login(get_user_model().objects.create_superuser("admin"))
    return client


def test_all_pages_of_the_admin_open(admin):
    pages = create_pages()
    assert len(pages) > 40

    statuses = {name: admin.get(address).status_code for name, address in pages.items()}

    assert {name: status for name, status in statuses.items() if status != 200} == {}


def test_cron_schedules_are_shown_in_words_with_the_library_that_celery_beat_needs(admin):
    assert version("cron-descriptor").startswith("1.")
    create_pages()

    html = admin.get(reverse("admin:horsies_django_schedule_changelist")).content.decode()

    assert "At 09:00, Monday through Friday" in html


def test_a_request_of_an_api_sends_a_task_that_a_worker_runs(admin, worker, settings):
    response = admin.post("/write/", {"text": "hello"}, "application/json")

    task = Task.objects.get(pk=response.json()["id"])
    assert Request.objects.filter(path="/write/").exists()
    panel = {"request_id": response["djdt-request-id"], "panel_id": "TasksPanel"}
    assert write_note.module_path in admin.get(reverse("djdt:render_panel"), panel).json()["content"]
    worker(DJANGO_SETTINGS_MODULE=settings.SETTINGS_MODULE)
    wait_until(lambda: Task.objects.filter(pk=task.pk, status=TaskStatus.COMPLETED), 30, "the task is completed")
    note = Note.objects.get()
    assert (note.text, note.history.count()) == ("hello", 1)


def test_the_tasks_of_wagtail_are_sent_and_drained(drain):
    Locale.objects.create(language_code="en")
    Page.add_root(title="root", slug="root")

    sent = Task.objects.filter(task_name__startswith="wagtail.")
    assert sent.exists()
    drain()

    assert set(sent.values_list("status", flat=True)) == {TaskStatus.COMPLETED}
