"""The page of a task in a browser: it fits every screen, copies its traceback, and runs the task again."""

import pytest
from selenium.webdriver.common.by import By

from horsies_django.models import Task
from tests.jobs import tasks

pytestmark = pytest.mark.once


@pytest.fixture
def failed(drain):
    """Return a task that failed in three attempts."""
    handle = tasks.flaky.send("a-long-key-" + "x" * 80, 9)
    drain()
    return Task.objects.get(pk=handle.id)


def test_the_page_fits_every_screen_and_has_no_serious_violation(browser, failed):
    for page in ("task_change", "task_run_again"):
        browser.use_desktop_screen()
        browser.go(page, failed.pk)
        assert not browser.scrolls_sideways
        for scheme in ("light", "dark"):
            browser.set_color_scheme(scheme)
            assert browser.serious_violations() == []
        browser.use_phone_screen(390)
        browser.go(page, failed.pk)
        assert not browser.scrolls_sideways


def test_the_error_and_its_traceback_are_in_the_first_screen(browser, failed):
    browser.go("task_change", failed.pk)

    block = browser.driver.find_element(By.ID, "horsies-traceback-text")

    assert block.is_displayed()
    assert block.rect["y"] < 400
    assert "RuntimeError: attempt 3" in block.text


def test_an_operator_runs_a_task_again_with_other_arguments(browser, failed):
    browser.go("task_change", failed.pk)
    browser.click("Run again…")
    box = browser.driver.find_element(By.NAME, "args")
    box.clear()
    box.send_keys('["other", "x"]')
    browser.click("Run again")
    browser.await_text("The task was not sent.")
    assert "fails" in browser.text  # the parameter
    box = browser.driver.find_element(By.NAME, "args")
    assert box.get_attribute("value") == '["other", "x"]'
    box.clear()
    box.send_keys('["other", 0]')
    browser.click("Run again")
    browser.await_text("This is a new task, run again from")

    new = Task.objects.get(rerun_of_id=failed.pk)

    assert new.args == ["other", 0]
    browser.click_on(By.CSS_SELECTOR, ".field-page_rerun_of a")
    browser.await_text(str(new.pk))
