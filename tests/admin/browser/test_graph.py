"""The graph of a workflow: it opens so that it can be read, and is made larger and smaller by keys."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from horsies_django import Workflow
from tests.admin.test_workflows_admin import row
from tests.jobs import tasks


def chain(length):
    return row(
        "chain", *({"waits_for": [place - 1] if place else [], "task_name": f"t{place}"} for place in range(length))
    )


def size(browser):
    """Return how large the graph is drawn, of its own size."""
    of_own = "const one = document.querySelector('svg.horsies-drawn');"
    return browser.driver.execute_script(
        of_own + "return one.getBoundingClientRect().width / one.viewBox.baseVal.width"
    )


def fits(browser):
    """Whether nothing of the graph is beside its box."""
    canvas = "const one = document.querySelector('.horsies-canvas');"
    return browser.driver.execute_script(canvas + "return one.scrollWidth <= one.clientWidth")


def told(browser):
    return browser.driver.find_element(By.CSS_SELECTOR, ".horsies-zoom output").text


@pytest.mark.parametrize("script", ["with its script", "without a script"])
def test_a_graph_opens_as_wide_as_its_box_where_it_can_be_read(browser, script):
    small, middling, long = chain(2), chain(5), chain(30)

    with browser.without("*/graph.js" if script.startswith("without") else "*/nothing.js"):
        browser.go("workflow_change", small.id)
        assert size(browser) == pytest.approx(1, abs=0.01), "no larger than it was drawn"
        browser.go("workflow_change", middling.id)
        assert fits(browser)
        assert 0.6 < size(browser) < 1
        browser.go("workflow_change", long.id)
        assert not fits(browser)
        assert size(browser) == pytest.approx(0.6, abs=0.01)
        browser.driver.find_element(By.CSS_SELECTOR, ".horsies-zoom-full").click()
        assert size(browser) == pytest.approx(1, abs=0.01)


def test_with_the_keyboard_alone_a_graph_is_made_larger_and_smaller(browser):
    browser.go("workflow_change", chain(5).id)
    fitting = size(browser)

    browser.tab_into("[data-horsies-zoom='1']")
    for _ in range(3):
        browser.press(Keys.ENTER)
    assert size(browser) > 1
    assert told(browser) == f"{round(100 * size(browser))} %"
    browser.driver.execute_script("document.querySelector('[data-horsies-zoom=\"-1\"]').focus()")
    for _ in range(12):
        browser.press(Keys.SPACE)

    assert size(browser) == pytest.approx(0.25, abs=0.01), "and no smaller"
    browser.driver.find_element(By.CSS_SELECTOR, ".horsies-zoom-fit").send_keys(Keys.SPACE)
    assert size(browser) == pytest.approx(fitting, abs=0.01)


def test_what_is_kept_fresh_keeps_its_size(browser):
    handle = Workflow("two", tasks.noop.node()() >> tasks.noop.node()()).start()
    browser.go("workflow_change", handle.id)
    browser.driver.find_element(By.CSS_SELECTOR, "[data-horsies-zoom='1']").click()
    handle.cancel()

    browser.await_text("Cancelled")

    assert size(browser) == pytest.approx(1.25, abs=0.01)
