"""An operator who works with a browser; clicks are counted."""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth import get_user_model
from django.test import Client
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.admin.browser.chromium import Browser
from tests.conftest import wait_until


class Operator(Browser):
    """A browser that counts the clicks of its user; a choice from a menu and the Enter key are clicks, too."""

    clicks = 0
    _began = 0.0

    def log_in_as(self, name: str) -> None:
        """Log in as an existing user."""
        client = Client()
        client.force_login(get_user_model().objects.get(username=name))
        self.driver.get(f"{self.url}/admin/login/")
        self.driver.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})

    def begin(self) -> None:
        """Open the overview and begin to count."""
        self.go("overview_changelist")
        self.clicks, self._began = 0, time.monotonic()
        self.console_errors()

    def report(self, job: str) -> None:
        """Print what the job has cost."""
        print(f"{self.clicks:3} clicks {time.monotonic() - self._began:5.1f} s  {job}")

    def click_on(self, by: str, what: str) -> None:
        """Click the element that is found so."""
        self.clicks += 1
        super().click_on(by, what)

    def click_css(self, selector: str) -> None:
        """Click the first element that matches the selector."""
        self.click_on(By.CSS_SELECTOR, selector)

    def enter(self, selector: str, text: str, *, submit: bool = False) -> None:
        """Type a text into a field in place of what it has; with ``submit``, press Enter after it."""
        field = self.driver.find_element(By.CSS_SELECTOR, selector)
        field.clear()
        field.send_keys(text)
        if submit:
            self.clicks += 1
            field.send_keys(Keys.ENTER)

    def select(self, selector: str, value: str) -> None:
        """Choose from a menu."""
        self.clicks += 1
        Select(self.driver.find_element(By.CSS_SELECTOR, selector)).select_by_value(value)

    def choose_all(self, action: str) -> None:
        """Select all rows of a list, then all that match, and run an action."""
        self.clicks += 1
        super().choose_all(action)

    def press(self, key: str) -> None:
        """Press a key; Enter and Space count as a click."""
        self.clicks += key in (Keys.ENTER, Keys.SPACE)
        super().press(key)

    def text_of(self, selector: str) -> str:
        """Return the text of the first element that matches the selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def copy(self, source: str) -> str:
        """Click the button that copies the text of an element, and return what is in the clipboard then."""
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        self._cdp("Browser.grantPermissions", {"permissions": permissions, "origin": self.url})
        self.driver.execute_async_script("navigator.clipboard.writeText('').then(arguments[0])")
        self.click_css(f'[data-horsies-copy-from="{source}"]')
        read = "navigator.clipboard.readText().then(arguments[0])"
        wait_until(lambda: self.driver.execute_async_script(read), what=f"a copy of {source}")
        return str(self.driver.execute_async_script(read))

    def post(self, address: str) -> int:
        """Send a POST with the user's session and return the status of the answer."""
        session = self.driver.get_cookie("sessionid")
        client = Client()
        client.cookies["sessionid"] = session["value"]
        return client.post(address).status_code

    def choose(self, action: str, *keys: Any) -> None:
        """Select these rows of a list and run an action."""
        self.clicks += 2 + len(keys)
        super().choose(action, *keys)
