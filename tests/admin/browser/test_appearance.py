"""What every page owes to whoever looks at it: no fault that axe finds, no scrolling sideways, text that stays text.

Each of these looks at all pages, one after the other, for making what there is to see takes longer than looking.
"""

from itertools import chain

import pytest
from django.db import connection
from selenium.webdriver.common.by import By

from horsies_django.admin.actions import bulk_action
from horsies_django.ops.keyset import scan

from .pages import HOSTILE, furnish

pytestmark = pytest.mark.skipif(connection.vendor != "sqlite", reason="a page looks alike on every database")

#: Pages that show nothing anybody has named in HTML.
OWN_WORDS = {
    "index", "no tasks", "tasks, searched for", "no workflows", "queue without a row", "new queue", "new schedule",
    "move a task", "send an event", "cancel a workflow", "new workflow", "workflow with a map", "workflow of 120 nodes",
}  # fmt: skip


@pytest.fixture
def pages(browser, monkeypatch):
    """The addresses of all pages by name, with all there is to see."""
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0.0)  # what is done to all that match takes more than one request
    monkeypatch.setattr(scan, "CHUNKS", (24,))  # and so does counting it
    return furnish()


def each(browser, pages):
    """Open page after page."""
    for name, address in pages.items():
        browser.driver.get(browser.url + address)
        yield name


def pages_that_answer(browser, pages):
    """Open pages that come after a POST only."""
    browser.driver.get(browser.url + pages["move a task"])
    browser.click("Move 1 task")
    yield "move a task, with mistakes"
    browser.driver.get(browser.url + pages["tasks"])
    browser.choose_all("retry")
    yield "retry all that match"
    with browser.without("*/bulk_progress.js"):
        browser.click_on(By.CSS_SELECTOR, "button.default")
        browser.await_text("This goes on for as long as the page is open.")
        yield "how far it has come"
        browser.driver.get(browser.url + pages["tasks"])
        browser.choose_all("cancel")
        browser.await_text("They are counted first")
        yield "count all that match"


@pytest.mark.nightly
def test_axe_finds_no_grave_fault(browser, pages):
    faults = {}
    for name in chain(each(browser, pages), pages_that_answer(browser, pages)):
        faults[name, "light"] = browser.grave_faults()
        browser.scheme("dark")
        faults[name, "dark"] = browser.grave_faults("color-contrast")  # nothing else depends on it
        browser.scheme("light")

    assert {name: found for name, found in faults.items() if found} == {}


@pytest.mark.nightly
def test_a_phone_need_not_be_scrolled_sideways(browser, pages):
    browser.phone()

    names = chain(each(browser, pages), pages_that_answer(browser, pages))
    wide = [name for name in names if browser.scrolls_sideways]

    assert wide == []


def test_what_somebody_has_named_is_text_whatever_the_name(browser, pages):
    made, unnamed = [], []
    for name in each(browser, pages):
        if browser.driver.title == "taken" or browser.driver.find_elements(By.CSS_SELECTOR, 'img[src="x"]'):
            made.append(name)
        if HOSTILE[:12] not in browser.driver.execute_script("return document.body.textContent"):
            unnamed.append(name)

    assert made == []
    assert set(unnamed) <= OWN_WORDS
