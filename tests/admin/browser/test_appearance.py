"""All pages of the admin: no serious violation that axe finds, no sideways scrolling, and escaped text.

Each test opens all pages in turn, because creating their rows takes longer than opening them.
"""

from itertools import chain

import pytest
from selenium.webdriver.common.by import By

from horsies_django.admin.actions import bulk_action
from horsies_django.ops.keyset import scan
from tests.conftest import wait_until

from .pages import HOSTILE, create_pages

pytestmark = pytest.mark.once

#: Pages that show none of the names that contain HTML.
PAGES_WITHOUT_NAMES = {
    "index", "no tasks", "tasks, searched for", "no workflows", "queue without a row", "new queue", "new schedule",
    "move a task", "send an event", "cancel a workflow", "new workflow", "workflow with a map", "workflow of 120 nodes",
    "row without tasks",
}  # fmt: skip

#: Pages of the project's own admin, whose breadcrumbs are Django's: their links differ only by colour.
PAGES_OF_THE_PROJECT = {"row with tasks", "row without tasks"}


@pytest.fixture
def pages(browser, monkeypatch):
    """Create the rows, and return the addresses of all pages by name."""
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0.0)  # an action on all matching rows takes several requests
    monkeypatch.setattr(scan, "CHUNKS", (24,))  # and so does counting them
    return create_pages()


def open_each(browser, pages):
    """Open the pages in turn, and yield their names."""
    for name, address in pages.items():
        browser.driver.get(browser.url + address)
        yield name


def open_pages_after_post(browser, pages):
    """Open the pages that only a POST leads to, and yield their names."""
    browser.driver.get(browser.url + pages["move a task"])
    browser.click("Move 1 task")
    yield "move a task, with mistakes"
    browser.driver.get(browser.url + pages["tasks"])
    browser.choose_all("retry")
    wait_until(lambda: browser.driver.find_elements(By.CSS_SELECTOR, "button.default"))
    yield "retry all that match"
    with browser.blocking("*/bulk_progress.js"):
        browser.click_on(By.CSS_SELECTOR, "button.default")
        browser.await_text("This continues while the page is open.")
        yield "progress of the action"
        browser.driver.get(browser.url + pages["tasks"])
        browser.choose_all("cancel")
        browser.await_text("The rows are counted first")
        yield "count all that match"


@pytest.mark.nightly
def test_axe_finds_no_serious_violation_on_any_page(browser, pages):
    violations = {}
    for name in chain(open_each(browser, pages), open_pages_after_post(browser, pages)):
        rules = ["color-contrast"] if name in PAGES_OF_THE_PROJECT else []
        violations[name, "light"] = browser.serious_violations(*rules)
        browser.set_color_scheme("dark")
        violations[name, "dark"] = browser.serious_violations("color-contrast")  # no other rule depends on it
        browser.set_color_scheme("light")

    assert {name: found for name, found in violations.items() if found} == {}


@pytest.mark.nightly
@pytest.mark.parametrize("width", [360, 390, 1280, 1440])
def test_no_page_scrolls_sideways(browser, pages, width):
    if width < 1000:
        browser.use_phone_screen(width)
    else:
        browser.use_desktop_screen(width)

    names = chain(open_each(browser, pages), open_pages_after_post(browser, pages))
    wide = [name for name in names if browser.scrolls_sideways]

    assert wide == []


@pytest.mark.nightly
def test_html_in_names_is_escaped_on_every_page(browser, pages):
    injected, without_names = [], []
    for name in open_each(browser, pages):
        if browser.driver.title == "taken" or browser.driver.find_elements(By.CSS_SELECTOR, 'img[src="x"]'):
            injected.append(name)
        if HOSTILE[:12] not in browser.driver.execute_script("return document.body.textContent"):
            without_names.append(name)

    assert injected == []
    assert set(without_names) <= PAGES_WITHOUT_NAMES
