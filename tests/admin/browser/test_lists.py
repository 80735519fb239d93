"""The lists of tasks and workflows fit the screen, whatever their rows contain."""

from datetime import timedelta

import pytest
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.models import Task, TaskAttempt
from tests.jobs import tasks

pytestmark = pytest.mark.once

NOW = timezone.now()
WORKER = "a-worker-of-a-long-name.of-a-host.example.org-123456-0123456789a"
OVERFLOW = "const box = document.querySelector('#changelist .results'); return box.scrollWidth - box.clientWidth"


@pytest.fixture
def rows(transactional_db):
    """Create tasks with long values, and a workflow."""
    failed = Task.objects.create(
        task_name="shop.orders.payment.tasks.charge_the_card_of_the_customer_again",
        status="FAILED", failed_at=NOW - timedelta(hours=7), started_at=NOW - timedelta(hours=9), attempt=12,
        max_retries=11, error_code="CARD_DECLINED", queue_name="a-queue-with-a-long-name", priority=-100,
        claimed_by_worker_id=WORKER, workflow_id="0190a0a0-0000-7000-8000-000000000000",
    )  # fmt: skip
    TaskAttempt.objects.create(
        task=failed, attempt=12, outcome="FAILED", due_at=NOW, started_at=NOW, finished_at=NOW,
        error_code="CARD_DECLINED", error_message="No luck " + "x" * 300, exception_class="shop.errors.CardDeclined",
    )  # fmt: skip
    Task.objects.create(
        task_name="import", status="RUNNING", started_at=NOW - timedelta(hours=9), claimed_at=NOW,
        claimed_by_worker_id=WORKER, progress={"done": 123_456, "total": 999_999, "message": "rows of the catalogue"},
        args=["y" * 500],
    )  # fmt: skip
    Workflow("a-workflow-of-a-long-name-" * 3, [tasks.noop.node()()]).start()


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), pytest.param(1440, "dark", marks=pytest.mark.nightly), (390, "light")]
)
def test_all_that_matters_is_seen_without_scrolling_sideways(browser, rows, width, scheme):
    browser.use_desktop_screen(width) if width > 1000 else browser.use_phone_screen(width)
    browser.set_color_scheme(scheme)

    for page, texts in {
        "task_changelist": (
            "Failed", "7 h ago", "CARD_DECLINED CardDeclined: No luck", "attempt 12/12", "priority -100", "again",
            "so far", "123,456/999,999",
        ),
        "workflow_changelist": ("Running", "0 of 1", "a-workflow-of-a-long-name-"),
    }.items():  # fmt: skip
        browser.go(page, query="?kind=tasks" if page == "task_changelist" else "")

        assert not browser.scrolls_sideways
        assert browser.driver.execute_script(OVERFLOW) <= 0
        for text in texts:
            assert browser.shows(text), text
        assert browser.serious_violations() == []
