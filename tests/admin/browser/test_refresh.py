"""Pages that refresh themselves, until their task or workflow has ended, and only while they are visible."""

import time

import pytest
from django.db.models.functions import Now
from selenium.webdriver.common.by import By

from horsies_django import Workflow, wait_for_event
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Rollup, Task
from tests.conftest import wait_until
from tests.jobs import tasks

#: Seconds in which a page with an interval of five seconds refreshes at least once.
REFRESH_SECONDS = 6


def mark(browser):
    """Set a mark that a reload of the page removes."""
    browser.driver.execute_script("window.mark = 1")


def is_marked(browser):
    return browser.driver.execute_script("return window.mark") == 1


def fetches(browser):
    """Return how often the page has fetched an update."""
    fetched = "return performance.getEntriesByType('resource').filter((one) => one.initiatorType === 'fetch').length"
    return browser.driver.execute_script(fetched)


def fetches_while_hidden(browser):
    """Return how many updates the page, now visible, fetched while it was last hidden."""
    return browser.driver.execute_script("""
        const became = (state) =>
          performance.getEntriesByType("visibility-state").findLast((one) => one.name === state).startTime;
        const [hidden, shown] = [became("hidden"), became("visible")];
        if (shown <= hidden) throw new Error("the page is hidden");
        const isUnseen = (one) => one.initiatorType === "fetch" && hidden <= one.startTime && one.startTime < shown;
        return performance.getEntriesByType("resource").filter(isUnseen).length;
    """)


def due(browser):
    return browser.driver.execute_script("return document.querySelector('.horsies-tile-due strong').textContent")


@pytest.mark.nightly
def test_a_workflow_page_refreshes_until_the_workflow_ends(browser, worker, tmp_path):
    first = tasks.hold.node(node_id="first")(key="held", gate=str(tmp_path / "gate"))
    asked, last = wait_for_event("approved", node_id="approved"), tasks.noop.node(node_id="last")()
    workflow = Workflow("release", first >> [asked, tasks.noop.node(node_id="other")()] >> last)
    handle = workflow.start()
    worker()
    browser.go("workflow_change", handle.id)
    mark(browser)
    selector = ".horsies-graph .horsies-is-completed"

    def completed():
        return len(browser.driver.find_elements(By.CSS_SELECTOR, selector))

    assert completed() == 0
    (tmp_path / "gate").touch()
    wait_until(lambda: completed() == 2)
    handle.send_event("approved")

    wait_until(lambda: completed() == 4)
    browser.await_text("4 of 4 nodes have finished")
    wait_until(lambda: not browser.driver.find_elements(By.CSS_SELECTOR, "[data-horsies-live]"))
    assert is_marked(browser)
    assert "Pause updates" not in browser.text
    assert not browser.driver.find_elements(By.CSS_SELECTOR, ".horsies-buttons .button")
    before = fetches(browser)
    time.sleep(REFRESH_SECONDS)  # there is no event to wait for
    assert fetches(browser) == before > 0


def test_a_refresh_of_the_overview_keeps_open_tables_scrolling_and_focus(browser):
    Rollup.objects.create(span="M", start=Now(), count=3, outcome="COMPLETED", queue_name="default", task_name="a")
    tasks.noop.send()
    browser.go("overview_changelist")
    assert due(browser) == "1"
    mark(browser)
    browser.click_on(By.CSS_SELECTOR, "#horsies-table-attempts summary")
    browser.driver.execute_script("document.getElementById('horsies-rows-attempts')?.scrollTo(0, 40); scrollTo(0, 200)")
    browser.driver.execute_script("document.querySelector('.horsies-tile-due a').focus({preventScroll: true})")
    position = browser.driver.execute_script("return scrollY")

    tasks.noop.send()

    wait_until(lambda: due(browser) == "2")
    assert is_marked(browser)
    assert browser.driver.find_element(By.ID, "horsies-table-attempts").get_attribute("open")
    assert browser.driver.execute_script("return scrollY") == position == 200
    assert "2" in browser.driver.switch_to.active_element.text


@pytest.mark.nightly
def test_a_paused_overview_does_not_refresh_until_it_is_resumed(browser):
    tasks.noop.send()
    browser.go("overview_changelist")
    browser.click("Pause updates")
    browser.driver.refresh()
    browser.await_text("Resume updates")
    tasks.noop.send()

    time.sleep(REFRESH_SECONDS)  # there is no event to wait for
    assert (fetches(browser), due(browser)) == (0, "1")
    browser.click("Resume updates")

    wait_until(lambda: due(browser) == "2")


@pytest.mark.nightly
def test_a_hidden_page_does_not_refresh(browser):
    tasks.noop.send()
    browser.go("overview_changelist")
    page = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.go("overview_changelist")

    wait_until(lambda: fetches(browser) >= 1)  # by then the hidden page would have refreshed, too
    tasks.noop.send()
    browser.driver.close()
    browser.driver.switch_to.window(page)

    wait_until(lambda: due(browser) == "2")
    assert fetches_while_hidden(browser) == 0


def test_a_task_page_shows_the_end_of_its_task_without_a_reload(browser, drain):
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
def test_a_refresh_of_a_graph_keeps_the_focus_on_its_node(browser, drain):
    one, two, three = (tasks.noop.node(node_id=name)() for name in ("one", "two", "three"))
    browser.go("workflow_change", Workflow("three", one >> two >> three).start().id)
    browser.tab_into("#horsies-flow-graph a")

    drain()

    browser.await_text("3 of 3 nodes have finished")
    focused = browser.driver.switch_to.active_element
    assert focused.accessible_name.startswith("one, Completed")


def statuses(browser):
    """Return the status of each update that the page has fetched."""
    found = "return performance.getEntriesByType('resource').filter((one) => one.initiatorType === 'fetch')"
    return browser.driver.execute_script(f"{found}.map((one) => one.responseStatus)")


def test_a_refresh_without_a_change_gets_no_page_and_ages_are_counted_on(browser):
    run(seconds=100)
    browser.go("task_changelist", query="?state=running")
    mark(browser)
    age = "return document.querySelector('.field-shown_run time').textContent"
    first = browser.driver.execute_script(age)

    refresh_now(browser)
    refresh_now(browser)

    assert statuses(browser)[:2] == [200, 304]
    assert first.startswith("1 min ")
    wait_until(lambda: browser.driver.execute_script(age) > first)
    run(seconds=7_300)
    refresh_now(browser)
    await_rows(browser, 2)
    assert is_marked(browser)
    assert "2 h 1 min" in browser.text


def test_an_age_does_not_jump_back_when_a_response_takes_longer(browser):
    run(seconds=65)
    browser.go("task_changelist", query="?state=running")
    browser.driver.execute_script(
        """
        const fetch = window.fetch, row = `tr:has(a[href*="${arguments[0]}"]) .field-shown_run time`;
        window.fetch = async (...request) => {
          const response = await fetch(...request);
          await new Promise((done) => setTimeout(done, 2500));
          return response;
        };
        window.ages = [];
        const note = () => ages.push(Number(document.querySelector(row).textContent.match(/(\\d+) s/)[1]));
        new MutationObserver(note).observe(document.body, { subtree: true, childList: true });
        """,
        str(Task.objects.get().pk),
    )
    run(seconds=7_300)
    refresh_now(browser)
    await_rows(browser, 2)
    wait_until(lambda: browser.driver.execute_script("return ages.length") > 3)

    ages = browser.driver.execute_script("return ages")
    assert ages == sorted(ages)


def test_a_part_that_was_in_use_during_a_change_shows_it_later(browser):
    """The tag of a page that was not shown as a whole must not be sent again."""
    run(seconds=100)
    browser.go("task_changelist", query="?state=running")
    browser.driver.execute_script(
        "getSelection().selectAllChildren(document.querySelector('#result_list .field-shown_name'))"
    )
    run(seconds=7_300)
    refresh_now(browser)
    assert row_count(browser) == 1

    browser.driver.execute_script("getSelection().removeAllRanges()")
    refresh_now(browser)

    await_rows(browser, 2)


def row_count(browser):
    return browser.driver.execute_script("return document.querySelectorAll('#result_list tbody tr').length")


def await_rows(browser, count):
    wait_until(lambda: row_count(browser) == count)


def refresh_now(browser):
    """Have the page refresh at once, as it does when its tab is shown again, and wait for the response."""
    before = len(statuses(browser))
    browser.driver.execute_script("document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: len(statuses(browser)) > before)


def run(seconds):
    """Create a task that has run for some seconds."""
    columns = {"task_name": "shop.ship", "status": "RUNNING", "claim": 1, "attempt": 1, "claimed_by_worker_id": "w"}
    row = Task.objects.create(**columns)
    Task.objects.filter(pk=row.pk).update(started_at=NowPlus(-seconds), claimed_at=NowPlus(-seconds))
