"""Buttons that copy a text to the clipboard."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = pytest.mark.once

BUTTON = "[data-horsies-copy]"
NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"


@pytest.mark.parametrize("script", ["", NO_CLIPBOARD], ids=["clipboard", "site without HTTPS"])
def test_the_copy_button_copies_the_id_and_says_so(browser, script):
    handle = tasks.noop.send()
    browser.go("task_changelist")
    browser.driver.execute_script(script)

    browser.tab_into(BUTTON)
    browser.press(Keys.ENTER)

    wait_until(lambda: browser.driver.find_element(By.CSS_SELECTOR, "[role=status]").get_attribute("textContent"))
    assert browser.driver.find_element(By.CSS_SELECTOR, "[role=status]").get_attribute("textContent") == "Copied"
    search = browser.driver.find_element(By.ID, "searchbar")
    search.send_keys(Keys.CONTROL, "v")
    assert search.get_attribute("value") == str(handle.id)


def test_without_javascript_no_page_shows_a_copy_button(browser):
    tasks.noop.send()
    with browser.without_javascript():
        browser.go("task_changelist")

        assert not browser.driver.find_element(By.CSS_SELECTOR, BUTTON).is_displayed()
