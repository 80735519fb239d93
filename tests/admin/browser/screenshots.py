"""``python -m tests.admin.browser.screenshots``: save screenshots of the admin with the demo's data in docs/images."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import django

from tests.conftest import ROOT, wait_until

IMAGES: Final = ROOT / "docs" / "images"


def main() -> None:
    """Run the demo on a new database, and save screenshots of its pages."""
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
            hide_paths({folder: "/srv", str(ROOT): "/srv/site", sysconfig.get_path("stdlib"): "/usr/lib/python3"})
            take_all(address)


def has_figures() -> bool:
    """Return whether the roll-ups count all attempts of the demo, and a worker has its row."""
    from horsies_django.models import Rollup, TaskAttempt, Worker

    counted = sum(Rollup.objects.filter(span="M").values_list("count", flat=True))
    return Worker.objects.exists() and counted >= TaskAttempt.objects.count()


def hide_paths(names: dict[str, str]) -> None:
    """Replace the paths of this machine in what the pages show."""
    from horsies_django.models import Task, TaskAttempt

    for model, columns in ((Task, ("args", "kwargs", "result")), (TaskAttempt, ("error_message", "traceback"))):
        for row in model.objects.only(*columns):
            for column in columns:
                text = json.dumps(getattr(row, column))
                for path, name in names.items():
                    text = text.replace(path, name)
                setattr(row, column, json.loads(text))
            row.save(update_fields=columns)


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """Run a command of ``manage.py`` until the block ends."""
    process = subprocess.Popen([sys.executable, "manage.py", *arguments], cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def site() -> Iterator[str]:
    """Serve the test project and return its address."""
    port = free_port()
    with running("runserver", "--noreload", f"127.0.0.1:{port}"):
        wait_until(lambda: answers(port))
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    """Return a port that no server listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether a server listens on the port."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def take_all(address: str) -> None:
    """Save every screenshot."""
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
        failed = Task.objects.archived().filter(task_name__endswith=".deliver").get()
        workflow = Workflow.objects.get(depth=0)
        pages: dict[str, tuple[str, tuple[Any, ...], str]] = {
            "overview": ("overview_changelist", (), ""),
            "tasks": ("task_changelist", (), "?queue_name=default"),  # tasks of other queues have paths as arguments
            "task": ("task_change", (failed.pk,), ""),
            "workflow": ("workflow_change", (workflow.pk,), ""),
            "schedule": ("schedule_change", (create_schedule(),), "#fieldset-0-1-heading"),
            "queues": ("queue_changelist", (), ""),
        }
        for name, (page, arguments, query) in pages.items():
            address = reverse(f"admin:horsies_django_{page}", args=arguments) + query
            take(browser, address, IMAGES / f"{name}.png")
        browser.set_color_scheme("dark")
        take(browser, reverse("admin:horsies_django_overview_changelist"), IMAGES / "overview-dark.png")
        browser.use_phone_screen()
        take(
            browser, reverse("admin:horsies_django_task_changelist") + "?queue_name=default", IMAGES / "tasks-phone.png"
        )
    finally:
        driver.quit()


def create_schedule() -> int:
    """Create a schedule, run it once, and return its key."""
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


def take(browser: Any, address: str, file: Path) -> None:
    """Save a screenshot of the top of a page."""
    browser.driver.get(browser.url + address)
    file.parent.mkdir(exist_ok=True)
    browser.save(file)
    print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
