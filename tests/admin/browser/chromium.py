"""A real browser: Debian's Chromium, on a site that serves the test database.

It needs ``apt-get install chromium chromium-driver`` and ``npm install --prefix .npm axe-core``. Where they are
missing, the tests are skipped, or fail if REQUIRE_BROWSER is set, as ``.ci/run`` does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from selenium import webdriver
from selenium.common import NoSuchElementException, StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.conftest import ROOT, wait_until

AXE: Final = ROOT / ".npm" / "node_modules" / "axe-core" / "axe.min.js"

#: The impacts of violations that fail a test. Lesser ones are Django's own as often as ours.
SERIOUS: Final = ("serious", "critical")

_RUN_AXE: Final = """
const done = arguments[arguments.length - 1];
const only = arguments[0] ? {runOnly: {type: "rule", values: arguments[0]}} : {};
const fading = document.getAnimations().filter((one) => one instanceof CSSTransition).map((one) => one.finished);
Promise.allSettled(fading)  // colours in transition between two schemes don't count
  .then(() => axe.run(document, {resultTypes: ["violations"], ...only}))
  .then(done, (error) => done({failed: String(error)}));
"""

_MATCHES: Final = "return arguments[0].matches(arguments[1])"

#: Whether the focused element, or an element in it, looks different without the focus.
#: Transitions are off, because Django's links change their colours slowly.
_SHOWS_FOCUS: Final = """
const focused = document.activeElement;
const all = [focused, ...focused.querySelectorAll("*")];
const look = () => all.map((one) => {
  const style = getComputedStyle(one);
  return [style.outlineStyle, style.outlineWidth, style.outlineColor, style.stroke, style.strokeWidth, style.boxShadow,
    style.backgroundColor, style.color, style.borderColor, style.textDecorationLine].join();
}).join(";");
for (const one of all) one.style.transition = "none";
const before = look();
focused.blur();
const after = look();
focused.focus({preventScroll: true, focusVisible: true});
return before !== after;
"""


def missing(what: str, how: str) -> Any:
    """Skip, or fail where the browser tests are required."""
    message = f"{what} is not installed: {how}"
    return pytest.fail(message) if os.environ.get("REQUIRE_BROWSER") else pytest.skip(message)


def start() -> webdriver.Chrome:
    """Start a headless browser. Its driver must be on the PATH: nothing is downloaded."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        missing("Chromium, or its driver,", "apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(binary)
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900", "--lang=en"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    started.set_script_timeout(180)  # axe checks all elements of a large page
    return started


class Browser:
    """The browser of one user of the site."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self._logged: list[str] = []

    # User, page and screen.

    def log_in(self, name: str = "operator") -> None:
        """Log in as a new superuser."""
        user = get_user_model().objects.create_superuser(name)
        client = Client()
        client.force_login(user)
        self.driver.get(f"{self.url}/admin/login/")
        self.driver.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})

    def go(self, page: str, *args: Any, query: str = "") -> None:
        """Open a page of the admin: ``index``, or what follows ``horsies_django_`` in its name."""
        name = page if page == "index" else f"horsies_django_{page}"
        self.driver.get(self.url + reverse(f"admin:{name}", args=args) + query)

    def use_desktop_screen(self, width: int = 1280, height: int = 900) -> None:
        """Use a desktop screen."""
        self._cdp("Emulation.clearDeviceMetricsOverride")
        self.driver.set_window_size(width, height)

    def use_phone_screen(self, width: int = 360, height: int = 740) -> None:
        """Use a phone's screen."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self._cdp("Emulation.setDeviceMetricsOverride", metrics)

    def set_color_scheme(self, name: str) -> None:
        """Prefer ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._cdp("Emulation.setEmulatedMedia", {"features": features})

    @contextmanager
    def blocking(self, address: str) -> Iterator[None]:
        """Keep the browser from loading an address, and drop its error about that."""
        self._cdp("Network.enable")
        self._cdp("Network.setBlockedURLs", {"urls": [address]})
        yield
        self._cdp("Network.setBlockedURLs", {"urls": []})
        self._logged = [error for error in self.console_errors() if "ERR_BLOCKED_BY_CLIENT" not in error]

    @contextmanager
    def without_javascript(self) -> Iterator[None]:
        """Run no scripts of the pages that are opened meanwhile."""
        self._cdp("Emulation.setScriptExecutionDisabled", {"value": True})
        yield
        self._cdp("Emulation.setScriptExecutionDisabled", {"value": False})

    def _cdp(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        self.driver.execute_cdp_cmd(command, arguments or {})

    # Contents of the page.

    @property
    def text(self) -> str:
        """All text that the page shows."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def shows(self, text: str) -> bool:
        """Return whether the page shows this text now."""
        try:
            return text in self.text
        except (NoSuchElementException, StaleElementReferenceException):
            return False  # between two pages
        except WebDriverException as error:
            if "does not belong to the document" not in str(error):
                raise
            return False  # the same, in another message of the driver

    def await_text(self, text: str, limit: float = 30.0, *, reload: bool = False) -> None:
        """Wait until the page shows this text; with ``reload``, reload the page until it does."""

        def is_there() -> bool:
            if reload and not self.shows(text):
                self.driver.refresh()
            return self.shows(text)

        try:
            wait_until(is_there, limit=limit)
        except pytest.fail.Exception:
            pytest.fail(f"the page did not show {text!r} within {limit} s; it shows\n{self.text}", pytrace=False)

    @property
    def scrolls_sideways(self) -> bool:
        """Whether the page is wider than the screen."""
        width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.driver.execute_script(width)) > 0

    def save(self, path: Path) -> None:
        """Save a screenshot."""
        self.driver.save_screenshot(str(path))

    # Actions of the user.

    def click(self, label: str) -> None:
        """Click the button or the link with this label."""
        xpath = f'//button[normalize-space()="{label}"] | //a[normalize-space()="{label}"] | //input[@value="{label}"]'
        self.click_on(By.XPATH, xpath)

    def click_on(self, by: str, what: str) -> None:
        """Click the element that is found so, again if a refresh of the page replaces it meanwhile."""

        def clicked() -> bool:
            try:
                self.driver.find_element(by, what).click()
            except (NoSuchElementException, StaleElementReferenceException):
                return False
            return True

        wait_until(clicked, what=f"{what} on the page {self.driver.title!r}")

    def choose(self, action: str, *keys: Any) -> None:
        """Select these rows of a list and run an action."""
        for key in keys:
            self.driver.find_element(By.CSS_SELECTOR, f'input.action-select[value="{key}"]').click()
        self.driver.find_element(By.CSS_SELECTOR, f'select[name=action] option[value="{action}"]').click()
        self.driver.find_element(By.CSS_SELECTOR, "button[name=index]").click()

    def choose_all(self, action: str) -> None:
        """Select all rows of a list, then all that match, and run an action."""
        self.click_on(By.ID, "action-toggle")
        self.driver.find_element(By.CSS_SELECTOR, ".actions .question a").click()
        self.choose(action)

    def press(self, key: str) -> None:
        """Press a key, wherever the focus is."""
        ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, label: str, limit: int = 120) -> None:
        """Press Tab until the element with this label has the focus, and check that the focus is visible."""
        self._tab_until(lambda focused: label in (focused.text, focused.get_attribute("value")), label, limit)

    def tab_into(self, selector: str, limit: int = 120) -> None:
        """Press Tab until an element that matches this selector has the focus, and check that the focus is visible."""
        self._tab_until(lambda focused: self.driver.execute_script(_MATCHES, focused, selector), selector, limit)

    def _tab_until(self, is_there: Callable[[WebElement], bool], what: str, limit: int) -> None:
        for _ in range(limit):
            self.press(Keys.TAB)
            if self._is_focused(is_there):
                assert self.driver.execute_script(_SHOWS_FOCUS), f"the focus on {what!r} is not visible"
                return
        pytest.fail(f"Tab does not reach {what!r} within {limit} steps")

    def _is_focused(self, is_there: Callable[[WebElement], bool]) -> bool:
        while True:
            try:
                return is_there(self.driver.switch_to.active_element)
            except StaleElementReferenceException:
                pass  # a refresh of the page has just replaced the focused element

    # Errors.

    def console_errors(self) -> list[str]:
        """Return the errors and warnings that the browser logged since the last call."""
        entries = self.driver.get_log("browser")
        logged, self._logged = self._logged, []
        return logged + [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def serious_violations(self, *rules: str) -> list[str]:
        """Return the serious and critical violations that axe finds on the page, by all rules or by these."""
        if not AXE.exists():
            missing("axe-core", "npm install --prefix .npm axe-core")
        logged = self.console_errors()
        self.driver.execute_script(AXE.read_text())
        found = self.driver.execute_async_script(_RUN_AXE, rules or None)
        self.console_errors()  # axe tries styles that the page's policy forbids
        self._logged = logged
        assert "failed" not in found, found
        return [
            f"{violation['impact']} {violation['id']}: {violation['help']}: {node['html'][:200]}"
            for violation in found["violations"]
            if violation["impact"] in SERIOUS
            for node in violation["nodes"]
        ]
