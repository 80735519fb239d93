"""The chart of the overview in a browser: by keyboard, and on a phone."""

from datetime import UTC, datetime, timedelta

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from horsies_django.models import Queue, Rollup

pytestmark = pytest.mark.once


@pytest.fixture
def rollups(db):
    """Create attempts in each of the last ten minutes."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    Rollup.objects.bulk_create(
        Rollup(
            span="M",
            start=now - timedelta(minutes=ago),
            queue_name=f"queue-{queue}",
            task_name="shop.tasks.ship",
            outcome="COMPLETED",
            count=1_000 * (queue + 1),
            waits={"20": 5},
        )
        for ago in range(10)
        for queue in range(12)
    )


def test_the_keyboard_reaches_a_bar_and_opens_its_list_or_skips_the_chart(browser, rollups):
    browser.go("overview_changelist")
    skip = browser.driver.find_element(By.CSS_SELECTOR, ".horsies-chart-skip")
    browser.driver.execute_script("arguments[0].focus()", skip)
    assert skip.size["height"] > 10, "it shows while it has the focus"

    browser.tab_into('.horsies-chart a[aria-label*="completed"]', 1)
    browser.press(Keys.ENTER)

    browser.await_text("0 tasks on this page")
    assert "ended=completed" in browser.driver.current_url
    browser.driver.back()
    browser.await_text("Attempts, last hour, by minute")
    skip = browser.driver.find_element(By.CSS_SELECTOR, ".horsies-chart-skip")
    skip.send_keys(Keys.ENTER)
    browser.tab_into(".horsies-figure summary", 1)


def test_charts_fit_on_a_phone(browser, rollups):
    browser.use_phone_screen(390, 900)
    Queue.objects.create(name="queue-1")

    wide = []
    for page in (("overview_changelist", ""), ("queue_change", "", "~queue-1")):
        browser.go(page[0], *page[2:], query=page[1])
        svg = browser.driver.find_element(By.CSS_SELECTOR, ".horsies-chart")
        assert svg.size["width"] > 250
        wide += [page[0]] if browser.scrolls_sideways else []
    assert wide == []
