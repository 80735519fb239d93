"""Pages that keep themselves fresh: until what they show has ended, and no longer than anybody looks."""

import time

import pytest
from selenium.webdriver.common.by import By

from horsies_django import Workflow, wait_for_event
from tests.conftest import wait_until
from tests.jobs import tasks

#: Seconds after which a page of five seconds would have asked.
ROUND = 6


def mark(browser):
    """Leave a mark that a page which is loaded anew has not."""
    browser.driver.execute_script("window.mark = 1")


def is_marked(browser):
    return browser.driver.execute_script("return window.mark") == 1


def rounds(browser):
    """Return how often the page has fetched itself."""
    fetched = "return performance.getEntriesByType('resource').filter((one) => one.initiatorType === 'fetch').length"
    return browser.driver.execute_script(fetched)


def rounds_unseen(browser):
    """Return how often it has done so while it was hidden last, now that it is to be seen again."""
    return browser.driver.execute_script("""
        const became = (state) =>
          performance.getEntriesByType("visibility-state").findLast((one) => one.name === state).startTime;
        const [hidden, shown] = [became("hidden"), became("visible")];
        if (shown <= hidden) throw new Error("it is hidden");
        const isUnseen = (one) => one.initiatorType === "fetch" && hidden <= one.startTime && one.startTime < shown;
        return performance.getEntriesByType("resource").filter(isUnseen).length;
    """)


def due(browser):
    return browser.driver.execute_script("return document.querySelector('.horsies-tile-due strong').textContent")


@pytest.mark.nightly
def test_a_workflow_is_followed_to_its_end_and_then_left_alone(browser, worker, tmp_path):
    first = tasks.hold.node(node_id="first")(key="held", gate=str(tmp_path / "gate"))
    asked, last = wait_for_event("approved", node_id="approved"), tasks.noop.node(node_id="last")()
    flow = Workflow("release", first >> [asked, tasks.noop.node(node_id="other")()] >> last)
    handle = flow.start()
    worker()
    browser.go("workflow_change", handle.id)
    mark(browser)
    green = ".horsies-graph:not(.horsies-bars) .horsies-is-completed"

    def completed():
        return len(browser.driver.find_elements(By.CSS_SELECTOR, green))

    assert completed() == 0
    (tmp_path / "gate").touch()
    wait_until(lambda: completed() == 2)
    handle.send_event("approved")

    wait_until(lambda: completed() == 4)
    browser.await_text("4 of 4 nodes have ended")
    wait_until(lambda: not browser.driver.find_elements(By.CSS_SELECTOR, "[data-horsies-live]"))
    assert is_marked(browser)
    assert "Pause updates" not in browser.text
    assert not browser.driver.find_elements(By.CSS_SELECTOR, ".horsies-buttons .button")
    before = rounds(browser)
    time.sleep(ROUND)  # what does not happen can't be waited for
    assert rounds(browser) == before > 0


def test_the_overview_keeps_itself_fresh_and_what_is_open_stays_open(browser):
    tasks.noop.send()
    browser.go("overview_changelist")
    assert due(browser) == "1"
    mark(browser)
    browser.click_on(By.CSS_SELECTOR, "#horsies-table-hour summary")
    browser.driver.execute_script("document.getElementById('horsies-rows-hour')?.scrollTo(0, 40); scrollTo(0, 200)")
    browser.driver.execute_script("document.querySelector('.horsies-tile-due a').focus({preventScroll: true})")
    place = browser.driver.execute_script("return scrollY")

    tasks.noop.send()

    wait_until(lambda: due(browser) == "2")
    assert is_marked(browser)
    assert browser.driver.find_element(By.ID, "horsies-table-hour").get_attribute("open")
    assert browser.driver.execute_script("return scrollY") == place == 200
    assert "2" in browser.driver.switch_to.active_element.text


@pytest.mark.nightly
def test_who_pauses_the_overview_is_not_disturbed_until_it_goes_on(browser):
    tasks.noop.send()
    browser.go("overview_changelist")
    browser.click("Pause updates")
    browser.driver.refresh()
    browser.await_text("Resume updates")
    tasks.noop.send()

    time.sleep(ROUND)  # what does not happen can't be waited for
    assert (rounds(browser), due(browser)) == (0, "1")
    browser.click("Resume updates")

    wait_until(lambda: due(browser) == "2")


@pytest.mark.nightly
def test_a_page_that_nobody_sees_asks_for_nothing(browser):
    tasks.noop.send()
    browser.go("overview_changelist")
    page = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.go("overview_changelist")

    wait_until(lambda: rounds(browser) >= 1)  # by then the other would have asked, too
    tasks.noop.send()
    browser.driver.close()
    browser.driver.switch_to.window(page)

    wait_until(lambda: due(browser) == "2")
    assert rounds_unseen(browser) == 0


def test_a_task_is_seen_to_end_without_a_click(browser, drain):
    handle = tasks.noop.send()
    browser.go("task_change", handle.id)
    mark(browser)
    assert browser.driver.find_elements(By.LINK_TEXT, "Move")

    drain()

    browser.await_text("Completed")
    wait_until(lambda: not browser.driver.find_elements(By.LINK_TEXT, "Move"))
    assert browser.driver.find_elements(By.LINK_TEXT, "Delete")
    assert is_marked(browser)


@pytest.mark.nightly
def test_the_focus_stays_on_its_node(browser, drain):
    nodes = tasks.noop.node(node_id="one")(), tasks.noop.node(node_id="two")()
    browser.go("workflow_change", Workflow("two", nodes[0] >> nodes[1]).start().id)
    browser.tab_into("#horsies-flow-graph a")

    drain()

    browser.await_text("2 of 2 nodes have ended")
    focused = browser.driver.switch_to.active_element
    assert focused.accessible_name.startswith("one, Completed")
