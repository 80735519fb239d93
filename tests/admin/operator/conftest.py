"""The operator's site: 300,000 tasks on PostgreSQL, served by a real process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command

from horsies_django.db.now import Now
from horsies_django.models import Lease, Worker
from tests.admin.browser.chromium import start
from tests.admin.browser.screenshots import answers, free_port
from tests.admin.scale.builder import build
from tests.conftest import Process, wait_until
from tests.database import is_postgres, separate_database

from .operator import Operator

HERE: Final = Path(__file__).parent

#: The number of tasks in the database.
TASKS: Final = 300_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as nightly and slow."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def site(request: Any, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """Build the database, serve it, and return the site's address. Tests may use the database, too."""
    if not is_postgres():
        pytest.skip("only PostgreSQL is promised to cope with so many tasks")
    is_kept = request.config.getoption("reuse_db")
    with django_db_blocker.unblock(), separate_database("operator", is_kept=is_kept):
        call_command("migrate", verbosity=0)
        if not get_user_model().objects.exists():
            build(number=TASKS)
            create_users()
        port = free_port()
        with command("runserver", "--noreload", "--insecure", f"127.0.0.1:{port}"):
            wait_until(lambda: answers(port), limit=60)
            yield f"http://127.0.0.1:{port}"


def create_users() -> None:
    """Create an operator who may do everything, and a viewer who may only look."""
    get_user_model().objects.create_superuser("operator")
    viewer = get_user_model().objects.create_user("viewer", is_staff=True)
    permissions = Permission.objects.filter(content_type__app_label="horsies_django")
    viewer.user_permissions.set(permissions.filter(codename__startswith="view_"))


def send_heartbeats() -> None:
    """Let the workers of the database, but for the dead ones, and its reaper be alive."""
    Worker.objects.filter(last_beat_at__gt=Now() - timedelta(hours=1)).update(last_beat_at=Now())
    Lease.objects.update(renewed_at=Now())


@contextmanager
def command(*arguments: str) -> Iterator[Process]:
    """Run a command of the site until the block ends."""
    process = Process(*arguments, DJANGO_SETTINGS_MODULE="tests.admin.operator.settings")
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def chromium_of_operator(site: str) -> Iterator[Any]:
    """Start a browser."""
    driver = start()
    yield driver
    driver.quit()


@pytest.fixture
def operator(site: str, chromium_of_operator: Any, request: Any) -> Iterator[Operator]:
    """Return the operator's browser on the overview, where each job begins. Print the clicks and the seconds of it."""
    chromium_of_operator.delete_all_cookies()
    send_heartbeats()
    operator = Operator(chromium_of_operator, site)
    operator.use_desktop_screen()
    operator.set_color_scheme("light")
    operator.log_in_as("operator")
    operator.begin()
    yield operator
    operator.report(request.node.name)
    assert operator.console_errors() == []
