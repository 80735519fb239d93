"""The form of a schedule: its preview of the next runs changes while the user types, in a live region."""

import pytest
from selenium.webdriver.common.by import By

from horsies_django.models import Schedule
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.once


def type_in(browser, name, text):
    field = browser.driver.find_element(By.NAME, name)
    field.clear()
    field.send_keys(text)


def test_the_schedule_form_previews_runs_and_reports_mistakes_while_typing(browser):
    browser.go("schedule_add")
    region = browser.driver.find_element(By.CSS_SELECTOR, ".horsies-upcoming [aria-live=polite]")
    assert "Enter a timing" in region.text

    type_in(browser, "timezone", "Europe/Berlin")
    type_in(browser, "timing", "cron:30 9 * * *")  # no change of the clock skips this time
    browser.await_text("At 09:30 (Europe/Berlin)")
    assert region.text.count("09:30:00") == 5
    assert browser.serious_violations() == []

    type_in(browser, "timing", "cron:30 9 * * FOO")
    browser.await_text("the day of the week is 'FOO'")
    browser.set_color_scheme("dark")
    assert browser.serious_violations("color-contrast") == []


def test_a_picked_date_updates_the_preview_of_a_schedule(browser):
    browser.go("schedule_add")
    type_in(browser, "timing", "cron:30 2 * * *")
    browser.await_text("02:30:00")

    for part in ("0", "1"):  # Today, Now
        browser.driver.find_element(By.CSS_SELECTOR, f"#id_end_at_{part} ~ .datetimeshortcuts a").click()

    browser.await_text("No more runs")


def test_a_schedule_is_added_then_disabled_then_run(browser):
    browser.go("schedule_add")
    for name, text in (("name", "report"), ("task_name", tasks.noop.module_path), ("timing", "every:3600")):
        type_in(browser, name, text)
    browser.click("Save and continue editing")
    browser.await_text("every hour")

    browser.click("Disable")
    browser.await_text("disabled by an operator")
    browser.click("Run now")
    browser.await_text("1 run enqueued.")

    assert "noop" in browser.driver.find_element(By.ID, "horsies-history").text
    schedule = Schedule.objects.get()
    assert (schedule.run_count, schedule.enabled) == (1, False)


def test_the_preview_of_a_schedule_reports_an_unreachable_server_and_recovers(browser):
    browser.go("schedule_add")
    with browser.blocking("*/preview/*"):
        type_in(browser, "timing", "every:60")
        browser.await_text("The server cannot be reached")

    type_in(browser, "timing", "every:120")
    wait_until(lambda: browser.shows("every 2 minutes"))
