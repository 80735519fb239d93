"""The page of the test project that shows a report while a task writes it."""

import sys

import pytest
from selenium.webdriver.common.by import By

from horsies_django import TaskHandle
from horsies_django.models import Task
from testproject.modules.analysis import BROKEN, sources
from tests.conftest import wait_until
from tests.embedded.site import sites
from tests.output.event_stream import address_of

from .chromium import Browser

pytestmark = pytest.mark.once


@pytest.fixture
def on_asgi(browser, tmp_path, monkeypatch):
    """Return the browser on an ASGI server."""
    monkeypatch.setenv("ALLOWED_HOSTS", "*")
    with sites(tmp_path) as start:
        site = start(sys.executable, "-m", "uvicorn", "--port", "0", "testproject.asgi:application")
        elsewhere = Browser(browser.driver, f"http://{address_of(site)}")
        elsewhere.log_in("reporter")
        yield elsewhere
        browser.driver.get("about:blank")


def lines(browser):
    """Return how many lines of the report the page shows."""
    return browser.driver.find_element(By.CSS_SELECTOR, "#report pre").text.count("%")


def start(browser):
    """Start a report and return the handle of its task."""
    browser.driver.get(f"{browser.url}/report/")
    browser.click("Write the report")
    browser.await_text("Waiting for a worker")
    return TaskHandle(Task.objects.get().pk)


def grows(browser):
    """Wait until the page shows a part of the report, and then more of it."""
    first = wait_until(lambda: lines(browser))
    wait_until(lambda: lines(browser) > first)


def test_the_report_grows_while_its_task_writes_it(browser, worker):
    start(browser)
    worker()

    grows(browser)
    total = len(sources())
    assert f" of {total}: " in browser.text or "Completed" in browser.text
    browser.await_text("Completed", limit=120)
    assert lines(browser) == total - len(list(BROKEN.glob("*.txt"))) + 1
    browser.driver.refresh()
    browser.await_text("Completed")
    assert lines(browser) > 600
    browser.click("Its task in the admin")
    browser.await_text("Log and output")


@pytest.mark.nightly
def test_on_an_asgi_server_the_report_grows_until_its_task_is_cancelled(on_asgi, worker):
    handle = start(on_asgi)
    worker()

    grows(on_asgi)
    assert handle.cancel(include_running=True)
    on_asgi.await_text("Not completed")
    assert 0 < lines(on_asgi) < len(sources())
    assert not on_asgi.serious_violations()
