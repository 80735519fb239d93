"""The log and output of a task in a browser: they grow while it runs, and a user who reads back is left alone."""

import pytest
from selenium.webdriver.common.by import By

from tests.conftest import wait_until
from tests.output import jobs

pytestmark = pytest.mark.once

#: More lines than the box shows.
LINES = 80


def box_of(browser):
    """Return where the box is scrolled to, and how far it is from its end."""
    box = "const box = document.getElementById('horsies-output-text')"
    distance = "box.scrollHeight - box.clientHeight - box.scrollTop"
    return browser.driver.execute_script(f"{box}; return [box.scrollTop, {distance}]")


def test_the_box_stays_at_its_end_while_it_grows_unless_the_user_reads_back(browser, worker, tmp_path):
    handle = jobs.writes_at_gates.send(str(tmp_path), LINES + 2)
    for number in range(LINES):
        (tmp_path / str(number)).touch()
    worker()
    wait_until(lambda: len(handle.output()) == LINES)
    browser.go("task_change", handle.id)
    assert f"line {LINES - 1}" in browser.text
    top, distance = box_of(browser)
    assert top > 100
    assert distance < 8

    (tmp_path / str(LINES)).touch()
    browser.await_text(f"line {LINES}\n")
    assert box_of(browser)[0] > top
    assert box_of(browser)[1] < 8

    browser.driver.execute_script("document.getElementById('horsies-output-text').scrollTo(0, 30)")
    (tmp_path / str(LINES + 1)).touch()
    browser.await_text(f"line {LINES + 1}")
    assert box_of(browser)[0] == 30
    wait_until(lambda: not browser.driver.find_elements(By.CSS_SELECTOR, "[data-horsies-live]"))
