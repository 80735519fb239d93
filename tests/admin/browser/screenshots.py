"""``python -m tests.admin.browser.screenshots``: take the pictures in docs/images, of the admin on the demo's data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import django

from tests.conftest import ROOT, wait_until

IMAGES: Final = ROOT / "docs" / "images"


def main() -> None:
    """Run the demo on a database of its own, and look at it."""
    with tempfile.TemporaryDirectory(prefix="horsies-pictures-") as folder:
        os.environ |= {
            "DATABASE_URL": f"sqlite:///{folder}/demo.sqlite3",
            "OUTBOX": f"{folder}/outbox",
            "DJANGO_SETTINGS_MODULE": "testproject.settings",
        }
        django.setup()
        subprocess.run([sys.executable, "manage.py", "demo"], cwd=ROOT, check=True)
        with running("horsies_worker", "--threads", "4"), site() as address:
            wait_until(has_figures, limit=60)
            take_all(address)


def has_figures() -> bool:
    """Whether what the demo did has been counted, and somebody is there to be seen."""
    from horsies_django.models import Rollup, TaskAttempt, Worker

    counted = sum(Rollup.objects.filter(span="M").values_list("count", flat=True))
    return Worker.objects.exists() and counted >= TaskAttempt.objects.count()


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """Have a command of ``manage.py`` run."""
    process = subprocess.Popen([sys.executable, "manage.py", *arguments], cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def site() -> Iterator[str]:
    """Serve the test project and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running("runserver", "--noreload", f"127.0.0.1:{port}"):
        wait_until(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def take_all(address: str) -> None:
    """Take every picture."""
    from django.contrib.auth import get_user_model
    from django.test import Client
    from django.urls import reverse

    from horsies_django.models import Task, Workflow
    from tests.admin.browser.chromium import Browser, start

    driver = start()
    try:
        browser = Browser(driver, address)
        client = Client()
        client.force_login(get_user_model().objects.get(username="demo"))
        driver.get(f"{address}/admin/login/")
        driver.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})
        mendable = Task.objects.archived().filter(task_name__endswith=".deliver").get()
        flow = Workflow.objects.get(depth=0)
        pages: dict[str, tuple[str, tuple[Any, ...], str]] = {
            "overview": ("overview_changelist", (), ""),
            "tasks": ("task_changelist", (), "?queue_name=default"),  # the others have paths for arguments
            "task": ("task_change", (mendable.pk,), ""),
            "workflow": ("workflow_change", (flow.pk,), ""),
            "schedule": ("schedule_change", (a_schedule(),), "#fieldset-0-1-heading"),
            "queues": ("queue_changelist", (), ""),
        }
        for name, (page, arguments, query) in pages.items():
            where = reverse(f"admin:horsies_django_{page}", args=arguments) + query
            take(browser, where, IMAGES / f"{name}.png")
        browser.scheme("dark")
        take(browser, reverse("admin:horsies_django_overview_changelist"), IMAGES / "overview-dark.png")
        browser.phone()
        take(
            browser, reverse("admin:horsies_django_task_changelist") + "?queue_name=default", IMAGES / "tasks-phone.png"
        )
    finally:
        driver.quit()


def a_schedule() -> int:
    """Make a schedule by hand, run it once, and return its key."""
    from horsies_django.models import Schedule
    from testproject.modules.tasks import modules

    schedule = Schedule(
        name="list modules",
        task_name=modules.module_path,
        timing="cron:0 9 * * MON-FRI",
        timezone="Europe/Berlin",
        overlap="skip",
    )
    schedule.save()
    Schedule.objects.filter(pk=schedule.pk).run_now()
    return int(schedule.pk)


def take(browser: Any, where: str, file: Path) -> None:
    """Take a picture of what stands at the top of a page."""
    browser.driver.get(browser.url + where)
    file.parent.mkdir(exist_ok=True)
    browser.save(file)
    print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
