"""A browser that is started once, and at each test's end has nothing to complain of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here takes seconds."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chromium(django_db_setup: None) -> Iterator[Any]:
    """The browser's process. It is gone before the database is dropped."""
    from .chromium import start

    driver = start()
    yield driver
    driver.quit()


@pytest.fixture
def _brief_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's threads live as long as the browser keeps its sockets; their connections end with each request."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)


@pytest.fixture
def browser(_brief_connections: None, chromium: Any, live_server: Any) -> Iterator[Any]:
    """Somebody who is logged in, at a desk, in light colours."""
    from .chromium import Browser

    person = Browser(chromium, live_server.url)
    chromium.delete_all_cookies()
    person.wide()
    person.scheme("light")
    person.log_in()
    person.console_errors()
    yield person
    errors = person.console_errors()
    chromium.get("about:blank")  # it asks for nothing more while the tables are emptied
    assert errors == []
