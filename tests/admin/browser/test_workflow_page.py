"""A workflow's page in a browser: from the overview to the retry of a failed node, and that it fits every screen."""

import pytest
from django.utils import timezone
from selenium.webdriver.common.by import By

from horsies_django.models import Workflow
from tests.admin.workflow_rows import declined, node, order, workflow

#: What of an element, or of what it holds, is cut off at the right edge of the screen.
CUT_OFF = """
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll(arguments[0])].filter((one) => one.getBoundingClientRect().right > edge + 1)
  .map((one) => one.outerHTML.slice(0, 80));
"""


def test_a_failed_node_is_retried_with_three_clicks_from_the_overview(browser):
    row = order()
    Workflow.objects.filter(pk=row.pk).update(completed_at=timezone.now())
    browser.go("overview_changelist")

    browser.click("shop.order")
    browser.await_text("charge failed")
    browser.click("Retry charge")
    browser.await_text("Retry charge?")
    browser.click("Retry charge")

    browser.await_text("The node “charge” was re-queued.")
    row.refresh_from_db()
    assert row.status == "RUNNING"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1440])
def test_the_page_of_a_failed_workflow_fits_the_screen(browser, width, scheme):
    names = ["notify_the_customer_about_the_outcome_of_the_order", "b" * 60]
    nodes = [node(name, 0, (3, 9), (70, 99), **declined("no " * 90)) for name in names]
    row = workflow(*nodes, failed_index=0, seconds=99)
    browser.set_color_scheme(scheme)
    if width < 500:
        browser.use_phone_screen(width)
    else:
        browser.use_desktop_screen(width)

    browser.go("workflow_change", row.pk)

    assert not browser.scrolls_sideways
    assert browser.driver.execute_script(CUT_OFF, ".horsies-failure *, .horsies-nodes, .horsies-nodes *") == []
    buttons = browser.driver.find_elements(By.CSS_SELECTOR, ".horsies-nodes a.button")
    assert [button.text for button in buttons] == ["Retry", "Retry"]
    assert browser.serious_violations() == []
