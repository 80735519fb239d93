"""The graph of a workflow: its scale, and the part that is in view when the page opens."""

import pytest

from tests.admin.test_workflows_admin import row


def chain(length, **last):
    nodes = [{"waits_for": [index - 1] if index else [], "task_name": f"t{index}"} for index in range(length)]
    return row("chain", *nodes[:-1], nodes[-1] | last)


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


@pytest.mark.parametrize("script", ["with its script", "without a script"])
def test_a_graph_opens_as_wide_as_its_box_if_it_stays_readable(browser, script):
    small, medium, long = chain(3), chain(5), chain(30)

    with browser.blocking("*/graph.js" if script.startswith("without") else "*/nothing.js"):
        browser.go("workflow_change", small.id)
        assert scale(browser) == pytest.approx(1, abs=0.01), "a small graph is not enlarged"
        browser.go("workflow_change", medium.id)
        assert fits(browser)
        assert 0.6 < scale(browser) < 1
        browser.go("workflow_change", long.id)
        assert not fits(browser)
        assert scale(browser) == pytest.approx(0.6, abs=0.01)


def test_a_graph_opens_at_its_failed_node(browser):
    browser.go("workflow_change", chain(30, status="FAILED").id)

    assert browser.driver.execute_script("""
        const failed = document.querySelector(".horsies-node.horsies-is-failed").getBoundingClientRect();
        const canvas = document.querySelector(".horsies-canvas").getBoundingClientRect();
        return canvas.left <= failed.left && failed.right <= canvas.right + 1;
    """)
