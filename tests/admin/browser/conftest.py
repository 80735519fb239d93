"""A browser that starts once, and must have logged no errors when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as slow."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chromium(django_db_setup: None) -> Iterator[Any]:
    """Start a browser. It quits before the database is dropped."""
    from .chromium import start

    driver = start()
    yield driver
    driver.quit()


@pytest.fixture
def _brief_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close connections after each request, since the site's threads live as long as the browser keeps its sockets."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)


@pytest.fixture
def browser(_brief_connections: None, chromium: Any, live_server: Any) -> Iterator[Any]:
    """Return a browser that is logged in, with a desktop screen and light colours."""
    from .chromium import Browser

    browser = Browser(chromium, live_server.url)
    chromium.delete_all_cookies()
    browser.use_desktop_screen()
    browser.set_color_scheme("light")
    browser.log_in()
    browser.console_errors()
    yield browser
    errors = browser.console_errors()
    chromium.get("about:blank")  # it sends no requests while the tables are truncated
    assert errors == []
