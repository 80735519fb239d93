"""The graph of a workflow: its scale when the page opens, and its zoom."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from horsies_django import Workflow
from tests.admin.test_workflows_admin import row
from tests.jobs import tasks


def chain(length):
    return row(
        "chain", *({"waits_for": [index - 1] if index else [], "task_name": f"t{index}"} for index in range(length))
    )


def scale(browser):
    """Return the scale at which the graph is drawn."""
    find_graph = "const one = document.querySelector('svg.horsies-drawn');"
    return browser.driver.execute_script(
        find_graph + "return one.getBoundingClientRect().width / one.viewBox.baseVal.width"
    )


def fits(browser):
    """Return whether all of the graph is inside its box."""
    find_canvas = "const one = document.querySelector('.horsies-canvas');"
    return browser.driver.execute_script(find_canvas + "return one.scrollWidth <= one.clientWidth")


def zoom_label(browser):
    return browser.driver.find_element(By.CSS_SELECTOR, ".horsies-zoom output").text


@pytest.mark.parametrize("script", ["with its script", "without a script"])
def test_a_graph_opens_as_wide_as_its_box_if_it_stays_readable(browser, script):
    small, medium, long = chain(2), chain(5), chain(30)

    with browser.blocking("*/graph.js" if script.startswith("without") else "*/nothing.js"):
        browser.go("workflow_change", small.id)
        assert scale(browser) == pytest.approx(1, abs=0.01), "a small graph is not enlarged"
        browser.go("workflow_change", medium.id)
        assert fits(browser)
        assert 0.6 < scale(browser) < 1
        browser.go("workflow_change", long.id)
        assert not fits(browser)
        assert scale(browser) == pytest.approx(0.6, abs=0.01)
        browser.driver.find_element(By.CSS_SELECTOR, ".horsies-zoom-full").click()
        assert scale(browser) == pytest.approx(1, abs=0.01)


def test_a_graph_is_zoomed_by_keyboard(browser):
    browser.go("workflow_change", chain(5).id)
    fitting = scale(browser)

    browser.tab_into("[data-horsies-zoom='1']")
    for _ in range(3):
        browser.press(Keys.ENTER)
    assert scale(browser) > 1
    assert zoom_label(browser) == f"{round(100 * scale(browser))} %"
    browser.driver.execute_script("document.querySelector('[data-horsies-zoom=\"-1\"]').focus()")
    for _ in range(12):
        browser.press(Keys.SPACE)

    assert scale(browser) == pytest.approx(0.25, abs=0.01), "the smallest scale"
    browser.driver.find_element(By.CSS_SELECTOR, ".horsies-zoom-fit").send_keys(Keys.SPACE)
    assert scale(browser) == pytest.approx(fitting, abs=0.01)


def test_a_graph_keeps_its_zoom_when_the_page_refreshes(browser):
    handle = Workflow("two", tasks.noop.node()() >> tasks.noop.node()()).start()
    browser.go("workflow_change", handle.id)
    browser.driver.find_element(By.CSS_SELECTOR, "[data-horsies-zoom='1']").click()
    handle.cancel()

    browser.await_text("Cancelled")

    assert scale(browser) == pytest.approx(1.25, abs=0.01)
